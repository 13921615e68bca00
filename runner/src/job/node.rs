//! The name of one member of a job.

use std::fmt;

/// One member of a job, such as `trainer:0`. It has a workspace of its own and its own file in every checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Node(String);

impl Node {
    /// The node of this name.
    pub fn new(name: impl Into<String>) -> Self {
        Self(name.into())
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for Node {
    fn from(name: &str) -> Self {
        Self::new(name)
    }
}

impl From<&Node> for Node {
    fn from(node: &Node) -> Self {
        node.clone()
    }
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
