//! The pages of an LMDB data file, encoded: the tree from its leaves up, and the meta pages. What is where, [`pages`](super::pages) says.

#![expect(clippy::disallowed_methods, reason = "LMDB writes numbers in the order of the machine")]

use bytes::Bytes;

use super::pages::{
    FIRST_PAGE, Kind, LARGE, MAGIC, META, NO_PAGE, NODE_HEADER, OVERFLOW, PAGE_HEADER, VERSION,
};

/// What is usual, and read by any LMDB: the file says it.
pub(super) const PAGE_SIZE: usize = 4096;

/// A longer node would leave no room for a second one on its page: its value goes to pages of its own. As liblmdb has it.
const LARGEST_NODE: usize = (PAGE_SIZE - PAGE_HEADER) / 2 - size_of::<u16>();

/// The keys of the list of free pages are numbers.
const INTEGER_KEYS: u16 = 0x08;

static ZEROS: [u8; PAGE_SIZE] = [0; PAGE_SIZE];

/// The tree of a file that is written from front to end. It gives out pages in the order in which they belong into the file.
#[derive(Debug)]
pub(super) struct Tree {
    /// How many pages were given out, the meta pages included.
    pages: u64,
    leaf: TreePage,
    /// The leaves so far: their first keys and their numbers.
    leaves: Vec<Child>,
    overflow_pages: u64,
    entries: u64,
}

/// A page of the tree by what a branch says of it.
#[derive(Debug)]
struct Child {
    first_key: Vec<u8>,
    number: u64,
}

/// A page of the tree on its way: pointers from the front, nodes from the end.
#[derive(Debug)]
struct TreePage {
    bytes: Vec<u8>,
    first_key: Vec<u8>,
    nodes: usize,
    /// Where the last node begins.
    upper: usize,
}

impl Tree {
    pub(super) fn new() -> Self {
        let (leaf, leaves) = (TreePage::new(), Vec::new());
        Self { pages: FIRST_PAGE, leaf, leaves, overflow_pages: 0, entries: 0 }
    }

    /// The room of the meta pages, which are known at the end only.
    pub(super) fn placeholder() -> Vec<Bytes> {
        vec![Bytes::from_static(&ZEROS); FIRST_PAGE as usize]
    }

    /// Adds a record, whose key must ascend. Returns what comes next in the file.
    pub(super) fn add(&mut self, key: &[u8], value: &[Bytes]) -> Vec<Bytes> {
        let mut pieces = Vec::new();
        self.entries += 1;
        let len: usize = value.iter().map(Bytes::len).sum();
        let is_large = NODE_HEADER + key.len() + len > LARGEST_NODE;
        let (flags, held) = if is_large {
            let first = self.pages;
            self.put_value(value, len, &mut pieces);
            (LARGE, first.to_ne_bytes().to_vec())
        } else {
            (0, value.concat())
        };
        if !self.leaf.has_room(key, held.len()) {
            self.finish_leaf(&mut pieces);
        }
        self.leaf.push(len as u32, flags, key, &held);
        pieces
    }

    /// The rest of the file, and the meta pages at its begin.
    pub(super) fn finish(mut self) -> (Vec<Bytes>, Vec<u8>) {
        let mut pieces = Vec::new();
        if self.leaf.nodes > 0 {
            self.finish_leaf(&mut pieces);
        }
        let (leaf_pages, mut branch_pages, mut depth) =
            (self.leaves.len() as u64, 0, u16::from(self.entries > 0));
        let mut children = std::mem::take(&mut self.leaves);
        while children.len() > 1 {
            children = self.put_branches(&children, &mut pieces);
            branch_pages += children.len() as u64;
            depth += 1;
        }
        let root = children.first().map_or(NO_PAGE, |root| root.number);
        let main = Database {
            flags: 0,
            depth,
            pages: [branch_pages, leaf_pages, self.overflow_pages],
            entries: self.entries,
            root,
        };
        let empty = Database { root: NO_PAGE, ..Database::default() };
        // As if the first transaction had found an empty file and written all.
        let meta = [meta_page(0, &empty, FIRST_PAGE), meta_page(1, &main, self.pages)].concat();
        (pieces, meta)
    }

    /// A value on pages of its own.
    fn put_value(&mut self, value: &[Bytes], len: usize, pieces: &mut Vec<Bytes>) {
        let pages = (PAGE_HEADER + len).div_ceil(PAGE_SIZE);
        let mut header = header(self.pages, OVERFLOW);
        header.extend((pages as u32).to_ne_bytes());
        pieces.push(header.into());
        pieces.extend(value.iter().cloned());
        pieces.push(Bytes::from_static(&ZEROS).slice(..pages * PAGE_SIZE - PAGE_HEADER - len));
        self.pages += pages as u64;
        self.overflow_pages += pages as u64;
    }

    fn finish_leaf(&mut self, pieces: &mut Vec<Bytes>) {
        let leaf = std::mem::replace(&mut self.leaf, TreePage::new());
        let child = self.put_page(leaf, Kind::Leaf, pieces);
        self.leaves.push(child);
    }

    fn put_page(&mut self, page: TreePage, kind: Kind, pieces: &mut Vec<Bytes>) -> Child {
        let number = self.pages;
        self.pages += 1;
        let (first_key, bytes) = page.finish(number, kind);
        pieces.push(bytes);
        Child { first_key, number }
    }

    /// The branches over these pages. Each has two children or more, as liblmdb leaves none with one.
    fn put_branches(&mut self, mut children: &[Child], pieces: &mut Vec<Bytes>) -> Vec<Child> {
        let mut branches = Vec::new();
        while !children.is_empty() {
            let mut page = TreePage::new();
            let fit = children.iter().take_while(|child| {
                let fits = page.has_room(child.branch_key(&page), 0);
                if fits {
                    page.push_child(child);
                }
                fits
            });
            let mut count = fit.count();
            // At least seven of the longest keys fit.
            if children.len() - count == 1 {
                count -= 1;
                page = TreePage::new();
                children.iter().take(count).for_each(|child| page.push_child(child));
            }
            let (_, rest) = children.split_at(count);
            branches.push(self.put_page(page, Kind::Branch, pieces));
            children = rest;
        }
        branches
    }
}

impl Child {
    /// The key of the first child is not used, and left out.
    fn branch_key(&self, page: &TreePage) -> &[u8] {
        if page.nodes == 0 { &[] } else { &self.first_key }
    }
}

impl TreePage {
    fn new() -> Self {
        Self { bytes: vec![0; PAGE_SIZE], first_key: Vec::new(), nodes: 0, upper: PAGE_SIZE }
    }

    /// Where the pointers end if there are so many.
    fn lower(nodes: usize) -> usize {
        PAGE_HEADER + nodes * size_of::<u16>()
    }

    fn has_room(&self, key: &[u8], held: usize) -> bool {
        let node = (NODE_HEADER + key.len() + held).next_multiple_of(2);
        Self::lower(self.nodes + 1) + node <= self.upper
    }

    fn push_child(&mut self, child: &Child) {
        let key = child.branch_key(self).to_vec();
        if self.nodes == 0 {
            self.first_key.clone_from(&child.first_key);
        }
        self.push_node(child.number as u32, (child.number >> 32) as u16, &key, &[]);
    }

    fn push(&mut self, low: u32, flags: u16, key: &[u8], held: &[u8]) {
        if self.nodes == 0 {
            self.first_key = key.to_vec();
        }
        self.push_node(low, flags, key, held);
    }

    fn push_node(&mut self, low: u32, flags: u16, key: &[u8], held: &[u8]) {
        let node =
            [&low.to_ne_bytes()[..], &flags.to_ne_bytes(), &(key.len() as u16).to_ne_bytes(), key, held]
                .concat();
        self.upper -= node.len().next_multiple_of(2);
        self.set(self.upper, &node);
        self.set(Self::lower(self.nodes), &(self.upper as u16).to_ne_bytes());
        self.nodes += 1;
    }

    /// Its first key, and its bytes.
    fn finish(mut self, number: u64, kind: Kind) -> (Vec<u8>, Bytes) {
        let mut front = header(number, kind as u16);
        front.extend((Self::lower(self.nodes) as u16).to_ne_bytes());
        front.extend((self.upper as u16).to_ne_bytes());
        self.set(0, &front);
        (self.first_key, self.bytes.into())
    }

    fn set(&mut self, at: usize, field: &[u8]) {
        set(&mut self.bytes, at, field);
    }
}

/// What a meta page says of one of its two databases.
#[derive(Clone, Copy, Debug, Default)]
struct Database {
    flags: u16,
    depth: u16,
    /// Branches, leaves, those of values.
    pages: [u64; 3],
    entries: u64,
    root: u64,
}

impl Database {
    /// `first`: the page size, in the first of the two.
    fn encode(&self, first: u32) -> Vec<u8> {
        let mut bytes =
            [&first.to_ne_bytes()[..], &self.flags.to_ne_bytes(), &self.depth.to_ne_bytes()].concat();
        bytes.extend(
            self.pages.iter().chain([&self.entries, &self.root]).flat_map(|number| number.to_ne_bytes()),
        );
        bytes
    }
}

/// The meta page that transaction `number` writes, of a file of so many pages.
fn meta_page(number: u64, main: &Database, pages: u64) -> Vec<u8> {
    let free = Database { flags: INTEGER_KEYS, root: NO_PAGE, ..Database::default() };
    let mut page = vec![0; PAGE_SIZE];
    let mut fields = header(number, META);
    fields.resize(PAGE_HEADER, 0);
    fields.extend(MAGIC.to_ne_bytes());
    fields.extend(VERSION.to_ne_bytes());
    // No fixed address, and a map as long as the file.
    fields.extend(0_u64.to_ne_bytes());
    fields.extend((pages * PAGE_SIZE as u64).to_ne_bytes());
    fields.extend(free.encode(PAGE_SIZE as u32));
    fields.extend(main.encode(0));
    fields.extend((pages - 1).to_ne_bytes());
    fields.extend(number.to_ne_bytes());
    set(&mut page, 0, &fields);
    page
}

/// The first fields of a page: its number and its type.
fn header(number: u64, kind: u16) -> Vec<u8> {
    [&number.to_ne_bytes()[..], &[0; 2], &kind.to_ne_bytes()].concat()
}

fn set(bytes: &mut [u8], at: usize, field: &[u8]) {
    if let Some(place) = bytes.get_mut(at..at + field.len()) {
        place.copy_from_slice(field);
    }
}
