//! What the stages between a tensor and a store cost: a chunk encoded, and the manifest of 100,000 blobs encoded, decoded and searched.

use std::hint::black_box;

use bytes::Bytes;
use ckpt_engine::blob::DType;
use ckpt_engine::checkpoint::Codec;
use ckpt_engine::format::codec;
use ckpt_engine::format::layout::CHUNK_BYTES;
use ckpt_engine::format::manifest::{BlobEntry, BlobKind, Chunk, Manifest, Storage};
use ckpt_engine::format::shuffle::Width;
use criterion::{BatchSize, Criterion, Throughput};

const BLOBS: u32 = 100_000;

fn chunks(criterion: &mut Criterion) {
    // Numbers spread evenly over ±0.04: few exponents, noise in the mantissas, as weights have.
    let mut state = 1u32;
    let weights = std::iter::repeat_with(|| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state.cast_signed() as f32 * (0.04 / 2_147_483_648.0)).to_le_bytes()
    });
    let chunk: Bytes = weights.take(CHUNK_BYTES / 4).flatten().collect::<Vec<u8>>().into();
    let mut group = criterion.benchmark_group("encode a chunk of 4 MiB");
    group.throughput(Throughput::Bytes(CHUNK_BYTES as u64)).sample_size(10);
    for (name, width, level) in [
        ("raw", None, None),
        ("zstd 1", None, Some(1)),
        ("zstd 3", None, Some(3)),
        ("shuffled, zstd 1", Some(Width::Four), Some(1)),
        ("shuffled, zstd 3", Some(Width::Four), Some(3)),
    ] {
        group.bench_function(name, |bench| {
            bench.iter(|| codec::encode(black_box(chunk.clone()), width, level));
        });
    }
    group.finish();
}

fn manifest(criterion: &mut Criterion) {
    let storage = |record| Storage {
        bytes: 4096,
        chunk_bytes: CHUNK_BYTES as u64,
        first_record: record / 64,
        chunks_per_record: 1,
        offset: u64::from(record % 64) * 4096,
        chunks: vec![Chunk { crc32: record, codec: Codec::Raw, stored_bytes: 4096 }],
    };
    let blob = |number: u32| BlobEntry {
        name: format!("layer.{number:06}.weight"),
        storage: number as usize,
        kind: BlobKind::Tensor { dtype: DType::F32, shape: vec![32, 32] },
    };
    let manifest = Manifest {
        id: [7; 16],
        node: "trainer:0".to_owned(),
        epoch: 1,
        created_unix_ms: 1,
        writer: "bench".to_owned(),
        metadata: std::collections::BTreeMap::default(),
        storages: (0..BLOBS).map(storage).collect(),
        blobs: (0..BLOBS).map(blob).collect(),
    };
    let record = manifest.encode();
    let names: Vec<String> = (0..BLOBS).step_by(97).map(|number| blob(number).name).collect();
    let mut group = criterion.benchmark_group("manifest of 100,000 blobs");
    group.throughput(Throughput::Elements(u64::from(BLOBS))).sample_size(10);
    group.bench_function("encode", |bench| bench.iter(|| black_box(&manifest).encode()));
    group.bench_function("decode", |bench| {
        // Freeing 100,000 names is not decoding.
        bench.iter_batched(|| (), |()| Manifest::decode(black_box(&record)), BatchSize::PerIteration);
    });
    group.throughput(Throughput::Elements(names.len() as u64));
    group.bench_function("look up", |bench| {
        bench.iter(|| names.iter().filter(|name| manifest.blob(black_box(name)).is_some()).count());
    });
    group.finish();
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    chunks(&mut criterion);
    manifest(&mut criterion);
    criterion.final_summary();
}
