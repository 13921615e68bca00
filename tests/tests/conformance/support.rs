//! Short ways to write and read dbs.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use ckpt_engine::blob::Workspace;
use ckpt_engine::db::{Db, Driver, Limits, Payload, Read, Source, WritePlan};
use ckpt_engine::{Checkpoints, ErrorKind, Result};

pub type Entries = BTreeMap<Vec<u8>, Vec<u8>>;

/// A plan for `entries`.
pub fn plan(entries: &Entries) -> WritePlan {
    let bytes = entries.values().map(|value| value.len() as u64).sum();
    WritePlan { records: entries.len() as u64, bytes, limits: Limits::default() }
}

/// Writes `entries` as the db at `source`.
pub fn write(driver: &dyn Driver, source: &Source, entries: &Entries) -> Result<()> {
    driver.write(source, &plan(entries), &mut |transaction| {
        entries.iter().try_for_each(|(key, value)| transaction.put(key, Payload::from(value.clone())))
    })
}

/// Entries with keys `k0000`, `k0001`, … and these values.
pub fn entries<V: Into<Vec<u8>>>(values: impl IntoIterator<Item = V>) -> Entries {
    (0..).zip(values).map(|(index, value)| (key(index), value.into())).collect()
}

/// Key number `index` of [`entries`].
pub fn key(index: usize) -> Vec<u8> {
    format!("k{index:04}").into_bytes()
}

/// All that a cursor finds.
pub fn contents(db: &dyn Db) -> Result<Entries> {
    let mut cursor = db.cursor()?;
    let mut entries = Entries::new();
    while let Some(key) = cursor.key().map(<[u8]>::to_vec) {
        let value = cursor.value()?.to_vec();
        assert!(entries.insert(key, value).is_none(), "a cursor went over a key twice");
        cursor.next()?;
    }
    Ok(entries)
}

/// The db holds these entries and no others.
#[track_caller]
pub fn assert_holds(db: &dyn Db, expected: &Entries) {
    let found = contents(db).unwrap();
    assert!(found.keys().eq(expected.keys()), "{} keys instead of {}", found.len(), expected.len());
    for (key, value) in expected {
        let found = &found[key];
        let key = key.escape_ascii();
        assert!(
            found == value,
            "`{key}` has another value of {} bytes instead of {}",
            found.len(),
            value.len()
        );
    }
}

/// What each of some reads came to, in their order. Checks that each was told once.
pub fn outcomes(db: &dyn Db, reads: &[(Vec<u8>, Range<u64>)]) -> Vec<Result<Vec<u8>, ErrorKind>> {
    let told: Mutex<Vec<Option<Result<Vec<u8>, ErrorKind>>>> = Mutex::new(vec![None; reads.len()]);
    let wanted = reads.iter().map(|(key, range)| Read { key, range: range.clone(), into: None });
    db.read(wanted.collect(), &Limits::default(), &|index, outcome| {
        let outcome = outcome.map(<[u8]>::to_vec).map_err(|error| error.kind());
        let before = told.lock().unwrap()[index].replace(outcome);
        assert!(before.is_none(), "read {index} was told twice");
        Ok(())
    })
    .unwrap();
    let told = told.into_inner().unwrap().into_iter();
    told.map(|outcome| outcome.expect("every read is told")).collect()
}

/// Saves, loads, compares and verifies.
pub fn round_trip(place: &Checkpoints, workspace: &Workspace, node: &str, epoch: u64) {
    place.save(workspace, node, epoch).unwrap();
    assert_eq!(&place.load(node, epoch).unwrap(), workspace);
    verify(place, node, epoch);
}

/// Every verb's test ends with it.
pub fn verify(place: &Checkpoints, node: &str, epoch: u64) {
    let report = place.verify(node, epoch).unwrap();
    assert!(report.is_ok(), "{:?}", report.damage);
    let manifest = place.open(node, epoch).unwrap().manifest().unwrap().clone();
    assert_eq!((report.blobs, report.bytes), (manifest.blobs.len() as u64, manifest.bytes()));
}

/// Runs `work` on a thread for each of `items` and waits for all.
pub fn on_threads<T: Send, R: Send>(items: Vec<T>, work: impl Fn(T) -> R + Sync) -> Vec<R> {
    std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = items.into_iter().map(|item| scope.spawn(move || work(item))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// The db, opened.
pub fn open(driver: &Arc<dyn Driver>, source: &Source) -> Arc<dyn Db> {
    driver.open(source).unwrap()
}
