//! Keys: `<blob>#%<chunk>` for a chunk of a tensor, the blob's name for everything else.

/// Between a blob's name and the number of its chunk.
const SEPARATOR: &str = "#%";

/// The key of a chunk.
pub fn chunk_key(blob: &str, chunk: u64) -> String {
    format!("{blob}{SEPARATOR}{chunk}")
}

/// Whether a key ends as that of a chunk does.
pub fn is_chunk_key(key: &str) -> bool {
    without_number(key).is_some()
}

/// The blob that a record belongs to, by its key, and by the name in the record where the key can be read in two ways.
///
/// Caffe2 cuts at the first separator, so that a blob with one in its name comes back under another name. Here the key is cut at its
/// last separator that only digits follow; a key with a separator and no number is cut at the first, as in Caffe2. Before 2017 keys
/// had no number.
pub fn blob_name<'k>(key: &'k str, name: &str) -> &'k str {
    if key == name {
        return key;
    }
    let cut = || key.split_once(SEPARATOR).map(|(blob, _)| blob);
    without_number(key).or_else(cut).filter(|blob| !blob.is_empty()).unwrap_or(key)
}

fn without_number(key: &str) -> Option<&str> {
    let (blob, number) = key.rsplit_once(SEPARATOR)?;
    let digits = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    digits.then_some(blob)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back_from_keys() {
        for name in ["w", "gpu_0/w", "odd#%name", "a#%1", "#%"] {
            for chunk in [0, 1, 10, u64::MAX] {
                assert_eq!(blob_name(&chunk_key(name, chunk), name), name);
                assert!(is_chunk_key(&chunk_key(name, chunk)));
            }
            assert_eq!(blob_name(name, name), name, "not a chunk");
        }
    }

    #[test]
    fn the_key_counts_where_the_name_inside_is_another() {
        assert_eq!(blob_name("w#%3", ""), "w");
        assert_eq!(blob_name("w#%3", "v"), "w");
        assert_eq!(blob_name("w", "v"), "w");
        assert_eq!(blob_name("w#%x", "v"), "w");
        assert_eq!(blob_name("#%0", ""), "#%0");
    }
}
