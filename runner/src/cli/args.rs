//! The values of arguments that are more than a word.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// A STORE: `<db_type>:<prefix>` or a URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreArg {
    /// The backend's name, as given.
    pub db_type: String,
    /// Where, in the backend's own syntax.
    pub prefix: String,
}

impl FromStr for StoreArg {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let help = "give DB_TYPE:PREFIX, such as files:./ckpts, or a URL, such as s3://bucket/run1";
        let (scheme, rest) = text.split_once(':').ok_or(help)?;
        let (db_type, prefix) = match rest.strip_prefix("//") {
            // `files://x` would be a path from the root that nobody means.
            Some(path) if scheme.eq_ignore_ascii_case("file") => {
                // An empty host or this one; then the path from the root.
                let path = path.strip_prefix("localhost").unwrap_or(path);
                if !path.starts_with('/') {
                    return Err(
                        "a file URL names a path from the root, such as file:///data/ckpts".to_owned()
                    );
                }
                ("files", percent_decode(path)?)
            }
            Some(path) if ["s3", "gs", "az"].iter().any(|known| scheme.eq_ignore_ascii_case(known)) => {
                (scheme, path.to_owned())
            }
            _ => (scheme, rest.to_owned()),
        };
        if db_type.is_empty() || prefix.is_empty() {
            return Err(help.to_owned());
        }
        Ok(Self { db_type: db_type.to_owned(), prefix })
    }
}

impl fmt::Display for StoreArg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.db_type, self.prefix)
    }
}

/// The value of `--dir`: a folder, or the URL of a place in an object store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DirArg {
    /// A folder on a disk.
    Folder(PathBuf),
    /// What is not on a disk.
    Url(StoreArg),
}

impl FromStr for DirArg {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        if !text.contains("://") {
            return Ok(Self::Folder(PathBuf::from(text)));
        }
        let help = || "give a folder, or a URL such as s3://bucket/run1".to_owned();
        let store: StoreArg = text.parse().map_err(|_| help())?;
        match store.db_type.as_str() {
            // The slashes of a scheme that means nothing to a STORE are part of its prefix.
            _ if store.prefix.starts_with("//") => Err(help()),
            "files" => Ok(Self::Folder(PathBuf::from(store.prefix))),
            _ => Ok(Self::Url(store)),
        }
    }
}

impl fmt::Display for DirArg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder(path) => write!(f, "{}", path.display()),
            Self::Url(store) => write!(f, "{}://{}", store.db_type, store.prefix),
        }
    }
}

fn percent_decode(path: &str) -> std::result::Result<String, String> {
    let wrong = || format!("a % in a file URL begins two hexadecimal digits: {path}");
    let mut bytes = Vec::with_capacity(path.len());
    let mut parts = path.split('%');
    bytes.extend_from_slice(parts.next().unwrap_or_default().as_bytes());
    for part in parts {
        let (digits, rest) = part.split_at_checked(2).ok_or_else(wrong)?;
        if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(wrong());
        }
        bytes.push(u8::from_str_radix(digits, 16).map_err(|_| wrong())?);
        bytes.extend_from_slice(rest.as_bytes());
    }
    String::from_utf8(bytes).map_err(|_| format!("a file URL is not UTF-8: {path}"))
}

/// The value of `--epoch`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EpochArg {
    /// The newest complete one.
    Latest,
    /// This one.
    Number(u64),
}

impl FromStr for EpochArg {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        if text == "latest" {
            return Ok(Self::Latest);
        }
        text.parse().map(Self::Number).map_err(|_| "give a number, or latest".to_owned())
    }
}

/// A number of bytes: a number and B, KiB, MiB, GiB or TiB.
pub(super) fn bytes(text: &str) -> std::result::Result<u64, String> {
    let wrong = || "give a number of bytes, such as 64MiB or 1GiB".to_owned();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit.trim() {
        "" | "B" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        "TiB" => 40,
        _ => return Err(wrong()),
    };
    let number: u64 = number.parse().map_err(|_| wrong())?;
    number.checked_mul(1 << shift).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> (String, String) {
        let store: StoreArg = text.parse().unwrap();
        (store.db_type, store.prefix)
    }

    #[test]
    fn stores_and_urls() {
        let cases = [
            ("files:./ckpts", "files", "./ckpts"),
            ("RocksDB:/data/run1", "RocksDB", "/data/run1"),
            ("lmdb:a:b", "lmdb", "a:b"),
            ("files://data", "files", "//data"),
            ("s3://bucket/run1", "s3", "bucket/run1"),
            ("s3:bucket/run1", "s3", "bucket/run1"),
            ("gs://bucket/a/b", "gs", "bucket/a/b"),
            ("az://container", "az", "container"),
            ("file:///data/run%201", "files", "/data/run 1"),
            ("file://localhost/data", "files", "/data"),
        ];
        for (text, db_type, prefix) in cases {
            assert_eq!(parsed(text), (db_type.to_owned(), prefix.to_owned()), "{text}");
        }
        for wrong in
            ["", "files", "files:", ":x", "./ckpts", "s3://", "file://host/x", "file:///%zz", "file:///a%2"]
        {
            assert!(wrong.parse::<StoreArg>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn folders_and_urls() {
        let folder = |path: &str| DirArg::Folder(PathBuf::from(path));
        for (text, path) in [(".", "."), ("s3:odd", "s3:odd"), ("file:///data/run%201", "/data/run 1")] {
            assert_eq!(text.parse(), Ok(folder(path)), "{text}");
        }
        let url: DirArg = "s3://bucket/run".parse().unwrap();
        assert!(matches!(&url, DirArg::Url(store) if store.prefix == "bucket/run"));
        assert_eq!(url.to_string(), "s3://bucket/run");
        for wrong in ["s3://", "https://bucket/run", "file://host/run"] {
            assert!(wrong.parse::<DirArg>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn epochs() {
        assert_eq!("latest".parse(), Ok(EpochArg::Latest));
        assert_eq!("12".parse(), Ok(EpochArg::Number(12)));
        for wrong in ["", "-1", "Latest", "1.0", "x"] {
            assert!(wrong.parse::<EpochArg>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn numbers_of_bytes() {
        for (text, expected) in
            [("0", 0), ("17B", 17), ("64KiB", 64 << 10), ("64 MiB", 64 << 20), ("1GiB", 1 << 30)]
        {
            assert_eq!(bytes(text), Ok(expected), "{text}");
        }
        for wrong in ["", "MiB", "-1", "1GB", "1.5GiB", "99999999TiB", "1 2MiB"] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
    }
}
