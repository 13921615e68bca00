//! db_type `lmdb`.
