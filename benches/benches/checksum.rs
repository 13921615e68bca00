//! What checking costs: the CRC-32 of every chunk, beside copying the same bytes. A load that copies into a tensor and checks it in the
//! same pass can be no faster than the slower of the two.

use std::hint::black_box;

use criterion::{Criterion, Throughput};

/// More than the caches of most processors hold.
const BYTES: usize = 64 << 20;
/// A chunk, as this version writes it. Its bytes are still in a cache when they were just copied.
const CHUNK_BYTES: usize = 4 << 20;

fn checksum(criterion: &mut Criterion) {
    let from: Vec<u8> = (0..BYTES).map(|i| (i.wrapping_mul(0x9E37_79B9) >> 24) as u8).collect();
    let mut into = vec![0; BYTES];
    let mut group = criterion.benchmark_group("64 MiB");
    group.throughput(Throughput::Bytes(BYTES as u64)).sample_size(20);
    group.bench_function("copy", |bench| {
        bench.iter(|| black_box(&mut into).copy_from_slice(black_box(&from)));
    });
    group.bench_function("crc32", |bench| {
        bench
            .iter(|| black_box(&from).chunks(CHUNK_BYTES).map(crc32fast::hash).fold(0, |all, one| all ^ one));
    });
    group.bench_function("copy and crc32", |bench| {
        bench.iter(|| {
            let chunks = black_box(&from).chunks(CHUNK_BYTES).zip(into.chunks_mut(CHUNK_BYTES));
            chunks.fold(0, |all, (from, into)| {
                into.copy_from_slice(from);
                all ^ crc32fast::hash(into)
            })
        });
    });
    group.finish();
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    checksum(&mut criterion);
    criterion.final_summary();
}
