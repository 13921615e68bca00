//! The behaviours of Caffe2's `load_save_test.py` and of its Checkpoint operator, over the `memory` store. The tests crate runs them
//! over every store.

use std::sync::Arc;

use super::*;
use crate::blob::{Tensor, Workspace};
use crate::checkpoint::caffe2::ChunkSize;
use crate::checkpoint::{Checkpoints, caffe2::BlobOptions};
use crate::db::{Layout, MemoryDriver, Source};
use crate::error::ErrorKind;

fn place() -> Checkpoints {
    Checkpoints::new(Arc::new(MemoryDriver::new()), "run").with_layout(Layout::Caffe2)
}

fn source(name: &str) -> Source {
    Source::new("run", name)
}

fn workspace(names: &[&str]) -> Workspace {
    let blob = |(number, name): (i32, &&str)| ((*name).to_owned(), Tensor::scalar(number).into());
    (0..).zip(names).map(blob).collect()
}

#[test]
fn names_are_changed_on_the_way_in_and_out() {
    let place = place();
    let from = workspace(&["gpu_0/w", "x/gpu_0/v", "plain"]);
    let inputs = ["gpu_0/w", "x/gpu_0/v", "plain"];
    let save = Save { strip_prefix: "gpu_0/".to_owned(), ..Save::default() };
    save.run(&from, &inputs, &place, &source("a")).unwrap();
    let saved = place.open_source(source("a")).unwrap();
    assert_eq!(saved.names(), ["plain", "v", "w"]);

    let mut to = Workspace::new();
    let load = Load { add_prefix: "p/".to_owned(), ..Load::default() };
    let error = load.run(std::slice::from_ref(&saved), &["w"], &mut to).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "outputs carry the prefix");
    load.run(std::slice::from_ref(&saved), &["p/w"], &mut to).unwrap();
    assert_eq!(to.get("p/w"), from.get("gpu_0/w"));

    Save::default().run(&from, &inputs, &place, &source("b")).unwrap();
    let all = Load { strip_prefix: "gpu_0/".to_owned(), load_all: true, ..Load::default() };
    let mut to = Workspace::new();
    all.run(&[place.open_source(source("b")).unwrap()], &[], &mut to).unwrap();
    assert_eq!(to.names().collect::<Vec<_>>(), ["plain", "v", "w"]);

    Save::default().run(&workspace(&["gpu_0/w", "w"]), &["gpu_0/w", "w"], &place, &source("c")).unwrap();
    let error = all.run(&[place.open_source(source("c")).unwrap()], &[], &mut to).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error}");
}

#[test]
fn overrides_and_source_names() {
    let place = place();
    let from = workspace(&["a", "b", "c"]);
    let overrides = || ["x", "y", "z"].map(str::to_owned).to_vec();
    let both = Save { blob_name_overrides: overrides(), strip_prefix: "q".to_owned(), ..Save::default() };
    assert!(both.run(&from, &["a", "b", "c"], &place, &source("a")).is_err());
    let save = Save { blob_name_overrides: overrides(), ..Save::default() };
    assert!(save.run(&from, &["a", "b"], &place, &source("a")).is_err());
    save.run(&from, &["a", "b", "c"], &place, &source("a")).unwrap();
    let db = [place.open_source(source("a")).unwrap()];
    let mut to = Workspace::new();
    Load { load_all: true, ..Load::default() }.run(&db, &[], &mut to).unwrap();
    assert_eq!(to.len(), 3);
    let named = Load { source_blob_names: vec!["x".to_owned()], ..Load::default() };
    named.run(&db, &["blob_x"], &mut to).unwrap();
    assert_eq!((to.len(), to.get("blob_x")), (4, from.get("a")));
    let named = Load { source_blob_names: overrides(), ..Load::default() };
    named.run(&db, &["blob_x", "blob_y", "blob_z"], &mut to).unwrap();
    assert_eq!(to.len(), 6);
    for wrong in [
        Load { source_blob_names: vec!["x".to_owned()], load_all: true, ..Load::default() },
        Load { source_blob_names: vec!["x".to_owned()], strip_prefix: "s".to_owned(), ..Load::default() },
        Load { source_blob_names: overrides(), ..Load::default() },
    ] {
        assert_eq!(wrong.run(&db, &["o"], &mut to).unwrap_err().kind(), ErrorKind::InvalidInput);
    }
}

#[test]
fn repeated_arguments_are_errors() {
    let place = place();
    let from = workspace(&["a", "b"]);
    let save = |save: Save, inputs: &[&str]| save.run(&from, inputs, &place, &source("a"));
    assert!(save(Save::default(), &["a", "a"]).is_err());
    assert!(save(Save::default(), &[]).is_err());
    assert_eq!(save(Save::default(), &["zz"]).unwrap_err().kind(), ErrorKind::NotFound);
    let same = Save { blob_name_overrides: vec!["x".to_owned(); 2], ..Save::default() };
    assert!(save(same, &["a", "b"]).is_err(), "Caffe2 writes a file that it cannot read");
    save(Save::default(), &["a", "b"]).unwrap();
    let open = || place.open_source(source("a")).unwrap();
    let mut to = Workspace::new();
    assert!(Load::default().run(&[open()], &["a", "a"], &mut to).is_err());
    assert!(Load::default().run(&[open(), open()], &["a"], &mut to).is_err(), "a db given twice");
    assert!(to.is_empty());
}

#[test]
fn several_sources() {
    let place = place();
    let (first, second) = (workspace(&["a", "b"]), workspace(&["c", "d"]));
    Save::default().run(&first, &["a", "b"], &place, &source("1")).unwrap();
    Save::default().run(&second, &["c", "d"], &place, &source("2")).unwrap();
    Save::default().run(&first, &["b"], &place, &source("3")).unwrap();
    let open = |names: &[&str]| -> Vec<_> {
        names.iter().map(|name| place.open_source(source(name)).unwrap()).collect()
    };
    let mut to = Workspace::new();
    let loaded = Load::default().run(&open(&["1", "2"]), &["d", "a"], &mut to).unwrap();
    assert_eq!(loaded.names, ["a", "d"]);
    let all = Load { load_all: true, ..Load::default() };
    assert_eq!(all.run(&open(&["1", "2"]), &[], &mut to).unwrap().names.len(), 4);
    let before = to.clone();
    let error = all.run(&open(&["1", "2", "3"]), &[], &mut to).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists);
    // Also where Caffe2 would have stopped reading before it.
    let error = Load::default().run(&open(&["1", "3"]), &["b"], &mut to).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists);
    assert_eq!(to, before, "nothing changed");
}

#[test]
fn what_is_missing() {
    let place = place();
    Save::default().run(&workspace(&["a"]), &["a"], &place, &source("1")).unwrap();
    let db = [place.open_source(source("1")).unwrap()];
    let mut to = workspace(&["kept"]);
    assert_eq!(Load::default().run(&db, &["a", "zz"], &mut to).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(to.len(), 1, "all or nothing");
    let lenient = Load { allow_incomplete: true, ..Load::default() };
    let loaded = lenient.run(&db, &["a", "kept"], &mut to).unwrap();
    assert_eq!(loaded, Loaded { names: vec!["a".to_owned()], missing: vec!["kept".to_owned()] });
    assert!(to.get("kept").is_some(), "a value that is there already stays");
    let all = Load { load_all: true, ..Load::default() };
    assert_eq!(all.run(&db, &["a", "zz"], &mut to).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(Load::default().run(&db, &[], &mut to).unwrap(), Loaded::default());
}

#[test]
fn chunks_by_argument_and_by_name() {
    let place = place();
    let mut from = Workspace::new();
    for name in ["int16_data", "uint16_data", "float16_data", "int64_data"] {
        from.insert(name, Tensor::from_vec([1234], (0..1234i64).collect()).unwrap());
    }
    let inputs: Vec<&str> = from.names().collect();
    let option = |regex: &str, size| BlobOptions::new(regex).unwrap().chunk_size(ChunkSize::Elements(size));
    let save = Save {
        chunk_size: ChunkSize::from_argument(40).unwrap(),
        options: vec![option("int16_data", 10), option(".*16_data", 20), option("float16_data", 30)],
        ..Save::default()
    };
    save.run(&from, &inputs, &place, &source("1")).unwrap();
    let db = place.open_source(source("1")).unwrap();
    let chunks: Vec<u64> = inputs.iter().map(|name| db.blob(name).unwrap().chunks).collect();
    let of = |size: u64| 1234u64.div_ceil(size);
    assert_eq!(inputs, ["float16_data", "int16_data", "int64_data", "uint16_data"]);
    assert_eq!(chunks, [of(20), of(10), of(40), of(20)]);
    let mut to = Workspace::new();
    Load { load_all: true, ..Load::default() }.run(&[db], &[], &mut to).unwrap();
    assert_eq!(to, from);
    for (argument, expected) in [(32, 39), (-1, 1), (0, 1), (1233, 2)] {
        let save = Save { chunk_size: ChunkSize::from_argument(argument).unwrap(), ..Save::default() };
        save.run(&from, &["int64_data"], &place, &source("1")).unwrap();
        assert_eq!(place.open_source(source("1")).unwrap().blob("int64_data").unwrap().chunks, expected);
    }
}

#[test]
fn a_checkpoint_at_every_tenth_iteration() {
    let place = place();
    let mut from = workspace(&["w"]);
    let checkpoint = Checkpoint::new("ckpt.%05d", 10, Save::default()).unwrap();
    for iteration in 0..=25i64 {
        from.insert("iter", Tensor::from_vec([1], vec![iteration]).unwrap());
        let saved = checkpoint.run(&from, "iter", &["w"], &place).unwrap();
        assert_eq!(saved.is_some(), iteration % 10 == 0);
    }
    let mut names = place.driver().list("run").unwrap();
    names.sort();
    assert_eq!(names, ["ckpt.00000", "ckpt.00010", "ckpt.00020"]);
    let db = place.open_source(source("ckpt.00020")).unwrap();
    assert_eq!((db.names(), db.about().epoch), (vec!["iter", "w"], 20));
    from.insert("iter", Tensor::scalar(10i32));
    assert!(checkpoint.run(&from, "iter", &["w"], &place).is_err(), "an i32 is no iteration");
    assert!(Checkpoint::new("x%d", 0, Save::default()).is_err());
}
