//! What the fuzz targets share: a folder in memory, and everything that can be done with a checkpoint.

use std::path::PathBuf;
use std::sync::OnceLock;

use ckpt_engine::blob::{Selection, Workspace};
use ckpt_engine::checkpoint::caffe2::{
    ChunkSize, Counter, Int8Tensor, SaveOptions, TreeCursor, as_tensors, is_meta_net, model_info, string_of,
};
use ckpt_engine::checkpoint::{Checkpoint, Diff, Options};
use ckpt_engine::db::{DriverOptions, Layout, Registry};
use ckpt_engine::{Checkpoints, ErrorKind};

/// A folder of this process: in `TMPDIR` if that is set, else in memory where the machine has such. Whoever starts the process
/// removes it.
pub fn folder() -> &'static PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let shared = PathBuf::from("/dev/shm");
        let is_chosen = std::env::var_os("TMPDIR").is_some();
        let parent = if shared.is_dir() && !is_chosen { shared } else { std::env::temp_dir() };
        let folder = parent.join(format!("ckpt-fuzz-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        folder
    })
}

/// The place `prefix` of a db_type.
pub fn place(db_type: &str, prefix: &str) -> Checkpoints {
    let mut registry = Registry::new();
    ckpt_backends::register_all(&mut registry);
    Checkpoints::new(registry.driver(db_type, DriverOptions::new()).unwrap(), prefix)
}

/// Verifies, loads and looks at a checkpoint in every way. The ways must agree, and what can be loaded must come back from a save as
/// it was.
pub fn use_all(place: &Checkpoints, checkpoint: &Checkpoint) {
    let verified = place.verify_source(checkpoint.source()).unwrap();
    let _ = checkpoint.blobs();
    for name in checkpoint.names() {
        let loaded = checkpoint.load(&Selection::names([name]));
        let rows = checkpoint.load_rows(name, 0..1);
        let Ok(loaded) = loaded else { continue };
        if let Ok(tensor) = loaded.tensor(name) {
            let expected = tensor.rows(0..1);
            assert_eq!(rows.as_ref().ok(), expected.as_ref().ok(), "rows differ: {rows:?} {expected:?}");
        }
        look_at(&loaded);
    }
    let loaded = match checkpoint.load(&Selection::All) {
        Ok(loaded) => loaded,
        Err(error) => {
            assert!(!verified.is_ok(), "what verify calls sound cannot be loaded: {error:?}");
            return;
        }
    };
    assert!(verified.is_ok(), "what verify calls damaged was loaded: {:?}", verified.damage);
    comes_back(&loaded, Some(checkpoint));
}

fn look_at(loaded: &Workspace) {
    for (name, blob) in loaded.iter() {
        if let Ok(counter) = Counter::from_blob(blob) {
            assert_eq!(Counter::from_blob(&counter.to_blob(name)).unwrap(), counter);
        }
        if let Ok(cursor) = TreeCursor::from_blob(blob) {
            assert_eq!(TreeCursor::from_blob(&cursor.to_blob(name)).unwrap(), cursor);
        }
        let _ = Int8Tensor::from_blob(blob);
        let _ = as_tensors(name, blob);
        if is_meta_net(name) {
            let _ = string_of(blob).map(model_info);
        }
    }
}

/// Saves blobs in both layouts. They come back as they were, or the save is refused with a reason; the native layout holds all.
pub fn comes_back(loaded: &Workspace, original: Option<&Checkpoint>) {
    let bytes: usize = loaded.iter().map(|(_, blob)| blob.data().len()).sum();
    let small = SaveOptions {
        chunk_size: ChunkSize::Elements(1 + bytes as u64 / 20),
        bytes_as_holder: true,
        fp16_as_bytes: true,
        ..SaveOptions::default()
    };
    let ways = [
        (Layout::Native, SaveOptions::default()),
        (Layout::Caffe2, SaveOptions::default()),
        (Layout::Caffe2, small),
    ];
    for (layout, caffe2) in ways {
        let options = Options { layout: Some(layout), caffe2, ..Options::default() };
        let place = place("memory", "again").with_options(options);
        match place.save(loaded, "n", 1) {
            Ok(_) => {
                let again = place.open("n", 1).unwrap();
                assert!(again.load(&Selection::All).unwrap() == *loaded, "comes back changed from {layout}");
                assert!(place.verify("n", 1).unwrap().is_ok(), "a save to {layout} is damaged");
                if let Some(original) = original {
                    assert_eq!(original.diff(&again).unwrap(), Diff::default(), "{layout}");
                }
            }
            Err(error) => {
                let is_refused = matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::Unsupported);
                assert!(layout == Layout::Caffe2 && is_refused, "cannot be saved to {layout}: {error:?}");
            }
        }
    }
}
