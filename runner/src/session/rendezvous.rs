//! Where the tasks of one group run meet, when they run as threads of one process.
//!
//! It knows which tasks still run, so that nobody waits for one that will not come: a failed task frees all who wait, and so does a
//! node whose last task ended without taking part. It also notes who failed only because another task did, so that the session
//! can report the cause and not an echo of it.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ckpt_engine::blob::Blob;
use ckpt_engine::{Error, ErrorKind, Result};

use super::Exchange;
use crate::job::{Node, TaskGroup};

/// The meeting place of one run of a group.
pub(super) struct Rendezvous {
    nodes: Vec<Node>,
    timeout: Duration,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// How many tasks of each node still run, in the order of `nodes`.
    running: Vec<usize>,
    gathers: BTreeMap<String, Gather>,
    /// The first failure of a task.
    failure: Option<Failure>,
    /// Per task, whether it was sent home because another had failed.
    sent_home: Vec<bool>,
}

struct Failure {
    kind: ErrorKind,
    message: String,
}

/// What was given under one tag.
struct Gather {
    /// Per node, whether it has taken part.
    arrived: Vec<bool>,
    /// What each node gave. Emptied when all have fetched it, while `arrived` stays to notice a second use of the tag.
    given: Vec<Option<Blob>>,
    to_fetch: usize,
}

impl Gather {
    fn new(nodes: usize) -> Self {
        Self { arrived: vec![false; nodes], given: vec![None; nodes], to_fetch: nodes }
    }

    /// What all gave, if all have come.
    fn fetch(&mut self, nodes: &[Node]) -> Option<Vec<(Node, Blob)>> {
        let all: Option<Vec<_>> = self.given.iter().cloned().collect();
        let all = nodes.iter().cloned().zip(all?).collect();
        self.to_fetch = self.to_fetch.saturating_sub(1);
        if self.to_fetch == 0 {
            self.given.fill(None);
        }
        Some(all)
    }
}

impl Rendezvous {
    pub(super) fn new(group: &TaskGroup, timeout: Duration) -> Arc<Self> {
        let nodes = group.used_nodes();
        let tasks_of = |node| group.tasks().iter().filter(|task| task.node() == node).count();
        let state = State {
            running: nodes.iter().map(tasks_of).collect(),
            sent_home: vec![false; group.tasks().len()],
            ..State::default()
        };
        Arc::new(Self { nodes, timeout, state: Mutex::new(state), changed: Condvar::new() })
    }

    /// The place of the group's task number `index` at the meeting.
    pub(super) fn seat(self: &Arc<Self>, index: usize, node: &Node, task: &str) -> Seat {
        Seat {
            rendezvous: Arc::clone(self),
            index,
            node: node.clone(),
            node_index: self.nodes.iter().position(|other| other == node),
            task: task.to_owned(),
        }
    }

    /// Whether that task was sent home because another had failed.
    pub(super) fn was_sent_home(&self, index: usize) -> bool {
        self.lock().sent_home.get(index).copied().unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The nodes for which `of_node` (in the order of `nodes`) is true, as an error names them.
    fn names(&self, of_node: impl Iterator<Item = bool>) -> String {
        let chosen = self.nodes.iter().zip(of_node).filter(|(_, chosen)| *chosen);
        chosen.map(|(node, _)| node.as_str()).collect::<Vec<_>>().join(", ")
    }
}

/// One task's place at a [`Rendezvous`].
#[derive(Clone)]
pub(super) struct Seat {
    rendezvous: Arc<Rendezvous>,
    index: usize,
    node: Node,
    node_index: Option<usize>,
    task: String,
}

impl Seat {
    /// Says that the task has ended, and how.
    pub(super) fn leave(&self, result: &Result<()>) {
        let mut state = self.rendezvous.lock();
        if let Some(running) = self.node_index.and_then(|node| state.running.get_mut(node)) {
            *running = running.saturating_sub(1);
        }
        if let (Err(error), None) = (result, &state.failure) {
            state.failure = Some(Failure { kind: error.kind(), message: error.to_string() });
        }
        drop(state);
        self.rendezvous.changed.notify_all();
    }

    fn arrive(&self, state: &mut State, tag: &str, mine: Blob) -> Result<()> {
        let nodes = self.rendezvous.nodes.len();
        let gather = state.gathers.entry(tag.to_owned()).or_insert_with(|| Gather::new(nodes));
        let slots =
            self.node_index.and_then(|node| gather.arrived.get_mut(node).zip(gather.given.get_mut(node)));
        match slots {
            Some((arrived @ false, given)) => {
                *arrived = true;
                *given = Some(mine);
                self.rendezvous.changed.notify_all();
                Ok(())
            }
            Some(_) => Err(self.error(
                ErrorKind::InvalidInput,
                "the node took part in this gather already: use another tag",
                tag,
            )),
            None => Err(self.error(ErrorKind::Internal, "the node is not of this group", tag)),
        }
    }

    /// Why waiting for the others under `tag` is in vain, if it is.
    fn in_vain(&self, state: &mut State, tag: &str) -> Option<Error> {
        if let Some(failure) = &state.failure {
            let why = format!("gather ended because a task of the group failed: {}", failure.message);
            let error = self.error(failure.kind, &why, tag);
            if let Some(sent_home) = state.sent_home.get_mut(self.index) {
                *sent_home = true;
            }
            return Some(error);
        }
        let gather = state.gathers.get(tag)?;
        let gone =
            gather.arrived.iter().zip(&state.running).map(|(arrived, running)| !arrived && *running == 0);
        let gone = self.rendezvous.names(gone);
        let why = "gather ended because all tasks of a node ended without taking part in it";
        (!gone.is_empty())
            .then(|| self.error(ErrorKind::InvalidInput, &format!("{why} missing=`{gone}`"), tag))
    }

    fn timed_out(&self, state: &State, tag: &str) -> Error {
        let arrived = state.gathers.get(tag).map(|gather| gather.arrived.as_slice()).unwrap_or_default();
        let missing = self.rendezvous.names(arrived.iter().map(|arrived| !arrived));
        let why = format!(
            "gather waited too long for other nodes seconds=`{}` missing=`{missing}`",
            self.rendezvous.timeout.as_secs_f64()
        );
        self.error(ErrorKind::Unavailable, &why, tag)
    }

    fn error(&self, kind: ErrorKind, what: &str, tag: &str) -> Error {
        Error::new(kind, format!("{what} tag=`{tag}` node=`{}` task=`{}`", self.node, self.task))
    }
}

impl Exchange for Seat {
    fn gather_all(&self, tag: &str, mine: Blob) -> Result<Vec<(Node, Blob)>> {
        let Rendezvous { nodes, timeout, changed, .. } = &*self.rendezvous;
        let began = Instant::now();
        let mut state = self.rendezvous.lock();
        self.arrive(&mut state, tag, mine)?;
        loop {
            if let Some(all) = state.gathers.get_mut(tag).and_then(|gather| gather.fetch(nodes)) {
                return Ok(all);
            }
            if let Some(error) = self.in_vain(&mut state, tag) {
                return Err(error);
            }
            let Some(left) = timeout.checked_sub(began.elapsed()).filter(|left| !left.is_zero()) else {
                return Err(self.timed_out(&state, tag));
            };
            state = changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}
