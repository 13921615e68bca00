//! Load a few blobs, and a few rows of one, out of a large checkpoint:
//! `cargo run --release --example partial_load -- [DB_TYPE [PREFIX]]`.

#![allow(clippy::print_stdout, reason = "it is there to be read")]

use ckpt_engine::Result;
use ckpt_engine::blob::{Selection, Tensor, Workspace};
use ckpt_engine::checkpoint::Checkpoints;
use ckpt_engine::db::{DriverOptions, Registry};

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let db_type = args.next().unwrap_or_else(|| "files".to_owned());
    let prefix =
        args.next().unwrap_or_else(|| std::env::temp_dir().join("ckpt-example").display().to_string());
    let mut registry = Registry::new();
    ckpt_backends::register_all(&mut registry);
    let place = Checkpoints::new(registry.driver(&db_type, DriverOptions::new())?, &prefix);

    let mut workspace = Workspace::new();
    for layer in 0..16u8 {
        let values = (0..1 << 20).map(|index| f32::from(layer) + index as f32).collect();
        workspace.insert(format!("layer.{layer}.weight"), Tensor::from_vec([1024, 1024], values)?);
        workspace
            .insert(format!("layer.{layer}.bias"), Tensor::from_vec([1024], vec![f32::from(layer); 1024])?);
    }
    let report = place.save(&workspace, "trainer:0", 1)?;
    println!("{} holds {} blobs in {} bytes", report.db, report.blobs, report.stored_bytes);

    let checkpoint = place.open("trainer:0", 1)?;
    println!("opened: {} bytes read", checkpoint.db().bytes_read());
    let biases = checkpoint.load(&Selection::globs(["*.bias"]))?;
    println!("{} biases: {} bytes read in all", biases.len(), checkpoint.db().bytes_read());
    let rows = checkpoint.load_rows("layer.7.weight", 100..102)?;
    println!(
        "rows 100..102 of layer.7.weight {:?}: {} bytes read in all",
        rows.shape(),
        checkpoint.db().bytes_read()
    );
    println!("its first element: {:?}", rows.as_slice::<f32>()?.first());
    Ok(())
}
