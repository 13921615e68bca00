//! What a job needs beyond single checkpoints: epoch records, the choice of where to resume, statistics, and the manager of
//! one node's checkpoints.

mod checkpoint_manager;
mod handler;
mod records;

pub use checkpoint_manager::CheckpointManager;
pub use handler::{Action, JobParams, MetadataHandler, NodeStat, RecordsHandler, Resume};
pub use records::{EpochRecord, EpochRecords, NodeRecord};
