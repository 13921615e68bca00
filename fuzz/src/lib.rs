//! What the fuzz targets share: a folder in memory, and everything that can be done with a checkpoint.

use std::path::PathBuf;
use std::sync::OnceLock;

use ckpt_engine::Checkpoints;
use ckpt_engine::blob::{Selection, Workspace};
use ckpt_engine::checkpoint::Checkpoint;
use ckpt_engine::checkpoint::caffe2::{
    Counter, Int8Tensor, TreeCursor, as_tensors, is_meta_net, model_info, string_of,
};
use ckpt_engine::db::{DriverOptions, Layout, Registry};

/// A folder of this process, in memory where the machine has such.
pub fn folder() -> &'static PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let shared = PathBuf::from("/dev/shm");
        let parent = if shared.is_dir() { shared } else { std::env::temp_dir() };
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

/// Verifies, loads and looks at a checkpoint in every way. What can be loaded must come back from a save as it was.
pub fn use_all(place: &Checkpoints, checkpoint: &Checkpoint) {
    let verified = place.verify_source(checkpoint.source());
    let _ = checkpoint.blobs();
    for name in checkpoint.names() {
        let Ok(loaded) = checkpoint.load(&Selection::names([name])) else { continue };
        let _ = checkpoint.load_rows(name, 0..1);
        for (name, blob) in loaded.iter() {
            let _ = (Counter::from_blob(blob), TreeCursor::from_blob(blob), Int8Tensor::from_blob(blob));
            let _ = as_tensors(name, blob);
            if is_meta_net(name) {
                let _ = string_of(blob).map(model_info);
            }
        }
    }
    let Ok(loaded) = checkpoint.load(&Selection::All) else { return };
    assert!(verified.unwrap().is_ok(), "what verify calls damaged was loaded");
    come_back(&loaded);
}

fn come_back(loaded: &Workspace) {
    for layout in [Layout::Native, Layout::Caffe2] {
        let place = place("memory", "again").with_layout(layout);
        // Names that meet, or that are empty, cannot be saved in the caffe2 layout.
        if place.save(loaded, "n", 1).is_ok() {
            assert!(place.load("n", 1).unwrap() == *loaded, "comes back changed from the {layout} layout");
        }
    }
}
