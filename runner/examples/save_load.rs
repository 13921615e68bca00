//! Save a workspace and load it again: `cargo run --release --example save_load -- [DB_TYPE [PREFIX]]`.

#![allow(clippy::print_stdout, reason = "it is there to be read")]

use ckpt_engine::blob::{Tensor, Workspace};
use ckpt_engine::checkpoint::Checkpoints;
use ckpt_engine::db::{DriverOptions, Registry};
use ckpt_engine::{Error, Result};

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let db_type = args.next().unwrap_or_else(|| "files".to_owned());
    let prefix =
        args.next().unwrap_or_else(|| std::env::temp_dir().join("ckpt-example").display().to_string());

    // A backend is chosen by its name.
    let mut registry = Registry::new();
    ckpt_backends::register_all(&mut registry);
    let place = Checkpoints::new(registry.driver(&db_type, DriverOptions::new())?, &prefix);

    // What a node holds in memory: blobs by name.
    let mut workspace = Workspace::new();
    let weights = Tensor::from_vec([2, 3], vec![0.5f32, -1.0, f32::NAN, 0.0, -0.0, 1e-30])?;
    workspace.insert("encoder.weight", weights.clone());
    workspace.insert("decoder.weight", weights); // tied: stored once, comes back shared
    workspace.insert("step", Tensor::scalar(1234u64));

    let report = place.save(&workspace, "trainer:0", 1)?;
    println!("saved {} blobs, {} bytes, as {}", report.blobs, report.bytes, report.db);

    let loaded = place.load("trainer:0", 1)?;
    if loaded != workspace {
        return Err(Error::internal("what came back is not what was saved"));
    }
    let shared = loaded.tensor("encoder.weight")?.data().shares(loaded.tensor("decoder.weight")?.data());
    println!("loaded {} blobs, bit for bit the same; tied weights are shared: {shared}", loaded.len());
    println!("epoch 2 exists: {}", place.exists("trainer:0", 2)?);
    Ok(())
}
