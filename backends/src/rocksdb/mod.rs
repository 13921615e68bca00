//! db_type `rocksdb`.
