//! A store of one's own: a driver that keeps its dbs wherever it likes and is chosen by its name like any other.
//!
//! This one wraps another driver and logs what is written: a decorator is the shortest driver there is. A driver for a new store
//! implements the same methods; what each of them promises is written at [`ckpt_engine::db::Driver`].

#![allow(clippy::print_stdout, reason = "it is there to be read")]

use std::sync::Arc;

use ckpt_engine::Result;
use ckpt_engine::blob::{Tensor, Workspace};
use ckpt_engine::checkpoint::Checkpoints;
use ckpt_engine::db::{
    Capabilities, Db, Driver, DriverOptions, MemoryDriver, Payload, Records, Registry, Source, Transaction,
    WriteBody, WritePlan,
};

#[derive(Debug)]
struct Logged<D> {
    inner: D,
    /// Set by the driver's option `mark`.
    mark: String,
}

struct LoggedTransaction<'a> {
    inner: &'a mut dyn Transaction,
    mark: &'a str,
}

impl Transaction for LoggedTransaction<'_> {
    fn put(&mut self, key: &[u8], value: Payload) -> Result<()> {
        println!("{} put {} ({} bytes)", self.mark, key.escape_ascii(), value.len());
        self.inner.put(key, value)
    }
}

impl<D: Driver> Driver for Logged<D> {
    fn db_type(&self) -> &'static str {
        "logged"
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn write(&self, source: &Source, plan: &WritePlan, body: &mut WriteBody<'_>) -> Result<()> {
        println!("{} write {source}: at most {} records, {} bytes", self.mark, plan.records, plan.bytes);
        self.inner.write(source, plan, &mut |inner| body(&mut LoggedTransaction { inner, mark: &self.mark }))
    }

    fn open(&self, source: &Source) -> Result<Arc<dyn Db>> {
        self.inner.open(source)
    }

    fn exists(&self, source: &Source) -> Result<bool> {
        self.inner.exists(source)
    }

    fn list(&self, prefix: &str) -> Result<Vec<String>> {
        self.inner.list(prefix)
    }

    fn destroy(&self, source: &Source) -> Result<()> {
        self.inner.destroy(source)
    }

    fn records(&self, prefix: &str) -> Result<Arc<dyn Records>> {
        self.inner.records(prefix)
    }
}

fn main() -> Result<()> {
    let mut registry = Registry::new();
    ckpt_backends::register_all(&mut registry);
    registry.register("logged", |mut options| {
        let mark = options.take("mark")?.unwrap_or_else(|| "log:".to_owned());
        options.finish("logged")?;
        Ok(Arc::new(Logged { inner: MemoryDriver::new(), mark }))
    });

    let driver = registry.driver("Logged", DriverOptions::new().with("mark", "[logged]"))?;
    let place = Checkpoints::new(driver, "run1");
    let mut workspace = Workspace::new();
    workspace.insert("weight", Tensor::from_vec([3], vec![1.0f32, 2.0, 3.0])?);
    place.save(&workspace, "trainer:0", 1)?;
    println!("loaded the same: {}", place.load("trainer:0", 1)? == workspace);

    match registry.driver("logd", DriverOptions::new()) {
        Ok(_) => println!("found a driver that nobody registered"),
        Err(error) => println!("a wrong name: {error}"),
    }
    match registry.driver("logged", DriverOptions::new().with("colour", "red")) {
        Ok(_) => println!("took an option that it does not know"),
        Err(error) => println!("a wrong option: {error}"),
    }
    Ok(())
}
