//! Driving a job through its groups, saving after every epoch and going on where an earlier run stopped: Caffe2's `JobRunner`.

use std::fmt;

use ckpt_engine::blob::Selection;
use ckpt_engine::manager::{Action, Resume};
use ckpt_engine::{Error, ErrorKind, Result, ResultExt};

use super::{Job, SavePolicy};
use crate::multi_node::MultiNodeCheckpointManager;
use crate::session::Session;
use crate::upload::UploadTaskGroupBuilder;

/// Runs a job. Can be run again: every run decides anew where to resume.
pub struct JobRunner {
    job: Job,
    manager: Option<MultiNodeCheckpointManager>,
    upload: Option<Box<dyn UploadTaskGroupBuilder>>,
    resume: Resume,
    save_policy: SavePolicy,
    report: TrainReport,
}

/// How the last run went.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TrainReport {
    /// The epoch whose checkpoint the run began with, if it resumed.
    pub resumed_from: Option<u64>,
    /// The epochs that were trained.
    pub trained: Vec<u64>,
    /// The epochs that were saved.
    pub saved: Vec<u64>,
    /// The epochs that could not be saved, where the policy let the job go on, and why.
    pub unsaved: Vec<(u64, String)>,
}

/// Where a run stands. Each state leads to the next; an error ends the run where it is.
enum State {
    /// Nothing is known yet.
    Begin,
    /// The workspaces are empty.
    FromScratch,
    /// The workspaces are to be loaded from this epoch.
    Resuming(u64),
    /// This epoch is in the workspaces, and saved.
    At(u64),
    /// This epoch is to be trained.
    Train(u64),
    /// The last epoch is in the workspaces.
    Trained(u64),
    /// All groups have run.
    Done(u64),
}

impl JobRunner {
    /// A runner of `job` without checkpoints.
    pub fn new(job: Job) -> Self {
        Self {
            job,
            manager: None,
            upload: None,
            resume: Resume::default(),
            save_policy: SavePolicy::default(),
            report: TrainReport::default(),
        }
    }

    /// Saves after the init group and after every epoch, and resumes: with a manager of all nodes, or of the only one.
    #[must_use]
    pub fn with_checkpoints(mut self, manager: impl Into<MultiNodeCheckpointManager>) -> Self {
        self.manager = Some(manager.into());
        self
    }

    /// Where to resume. The default is the newest epoch that is complete and intact.
    #[must_use]
    pub fn with_resume(mut self, resume: Resume) -> Self {
        self.resume = resume;
        self
    }

    /// Uploads the last epoch.
    #[must_use]
    pub fn with_upload(mut self, upload: impl UploadTaskGroupBuilder + 'static) -> Self {
        self.upload = Some(Box::new(upload));
        self
    }

    /// What to do about a save that fails.
    #[must_use]
    pub fn with_save_policy(mut self, policy: SavePolicy) -> Self {
        self.save_policy = policy;
        self
    }

    /// Sets where the next run resumes.
    pub fn set_resume(&mut self, resume: Resume) {
        self.resume = resume;
    }

    /// The job.
    pub fn job(&self) -> &Job {
        &self.job
    }

    /// The manager of the checkpoints, if there is one.
    pub fn manager(&self) -> Option<&MultiNodeCheckpointManager> {
        self.manager.as_ref()
    }

    /// How the last run went.
    pub fn report(&self) -> &TrainReport {
        &self.report
    }

    /// Trains until a stop condition holds, and returns the last epoch.
    ///
    /// From scratch the init group runs and epoch 0 is saved; resuming, the checkpoint is loaded instead. Then the epoch group
    /// runs and is saved, epoch by epoch. At the end the last epoch is uploaded, and the download and the exit group run. A job
    /// that had finished before runs no further epoch, only what comes at the end.
    pub fn train(&mut self, session: &mut dyn Session) -> Result<u64> {
        self.report = TrainReport::default();
        let mut state = State::Begin;
        loop {
            state = match state {
                State::Begin => self.begin()?,
                State::FromScratch => self.start_from_scratch(session)?,
                State::Resuming(epoch) => self.resume_from(epoch, session)?,
                State::At(epoch) => self.go_on_or_stop(epoch, session)?,
                State::Train(epoch) => self.train_epoch(epoch, session)?,
                State::Trained(epoch) => self.finish(epoch, session)?,
                State::Done(epoch) => return Ok(epoch),
            };
        }
    }

    fn begin(&mut self) -> Result<State> {
        let resume_from = match (&self.manager, self.resume) {
            (Some(manager), resume) => {
                manager.set_params(&self.job.nodes_to_checkpoint())?;
                manager.get_resume_from_epoch_id(resume)?
            }
            (None, Resume::Epoch(epoch)) => {
                return Err(Error::invalid(format!(
                    "cannot resume without a checkpoint manager epoch=`{epoch}`"
                )));
            }
            (None, Resume::Latest | Resume::Fresh) => None,
        };
        self.report.resumed_from = resume_from;
        Ok(resume_from.map_or(State::FromScratch, State::Resuming))
    }

    fn start_from_scratch(&mut self, session: &mut dyn Session) -> Result<State> {
        tracing::info!("starting from scratch");
        session.run(&self.job.init_group, 0).context(|| "init group")?;
        if let Some(manager) = &self.manager {
            session.run(&manager.init(&self.job.nodes_to_checkpoint(), None)?, 0)?;
            self.save_checkpoints(0, session)?;
        }
        // A stop condition is only asked after an epoch: its output may not be there yet.
        Ok(State::Train(1))
    }

    fn resume_from(&mut self, epoch: u64, session: &mut dyn Session) -> Result<State> {
        let manager = self.manager.as_ref().ok_or_else(|| Error::internal("resuming without a manager"))?;
        tracing::info!(epoch, "resuming");
        session.run(&manager.init(&self.job.nodes_to_checkpoint(), Some(epoch))?, epoch)?;
        session.run(&manager.load(epoch)?, epoch).context(|| format!("cannot resume from epoch {epoch}"))?;
        manager.report_checkpoint_stats(Action::Load)?;
        let finished = self.job.is_finished_on_resume(epoch, session)?;
        Ok(if finished { State::Trained(epoch) } else { State::Train(next(epoch)?) })
    }

    fn train_epoch(&mut self, epoch: u64, session: &mut dyn Session) -> Result<State> {
        tracing::info!(epoch, "epoch starts");
        session.run(&self.job.epoch_group, epoch).context(|| format!("epoch {epoch}"))?;
        self.report.trained.push(epoch);
        Ok(State::At(epoch))
    }

    fn go_on_or_stop(&mut self, epoch: u64, session: &mut dyn Session) -> Result<State> {
        // The conditions are fetched before the save, so that a save cannot change the decision.
        let finished = self.job.is_finished_after(epoch, session)?;
        if self.manager.is_some() {
            self.save_checkpoints(epoch, session)?;
        }
        Ok(if finished { State::Trained(epoch) } else { State::Train(next(epoch)?) })
    }

    fn finish(&mut self, epoch: u64, session: &mut dyn Session) -> Result<State> {
        if let Some(upload) = &self.upload {
            let manager = self.manager.as_ref();
            let manager =
                manager.ok_or_else(|| Error::invalid("cannot upload without a checkpoint manager"))?;
            session
                .run(&upload.build(epoch, manager)?, epoch)
                .and_then(|()| upload.publish(epoch, manager))
                .context(|| format!("cannot upload epoch {epoch}"))?;
        }
        session.run(&self.job.download_group, epoch).context(|| "download group")?;
        session.run(&self.job.exit_group, epoch).context(|| "exit group")?;
        Ok(State::Done(epoch))
    }

    /// Saves the workspaces of all nodes as `epoch` and notes that it is complete, by the save policy.
    ///
    /// `Ok` without a checkpoint only where the policy lets the job go on; [`TrainReport::unsaved`] then says so.
    pub fn save_checkpoints(&mut self, epoch: u64, session: &mut dyn Session) -> Result<()> {
        let mut failures = 0;
        let error = loop {
            let Err(error) = self.save_once(epoch, session) else {
                self.report.saved.push(epoch);
                return Ok(());
            };
            failures += 1;
            let Some(wait) = self.save_policy.retry_after(failures, &error) else {
                break error;
            };
            tracing::warn!(epoch, %error, ?wait, "cannot save; trying again");
            std::thread::sleep(wait);
        };
        let in_a_row = 1 + self.failed_since_last_save();
        if self.manager.is_none() || !self.save_policy.goes_on(in_a_row) {
            return Err(error.context(format!("cannot save epoch {epoch}")));
        }
        tracing::warn!(epoch, %error, in_a_row, "epoch is not saved; training on");
        self.report.unsaved.push((epoch, error.to_string()));
        Ok(())
    }

    fn save_once(&self, epoch: u64, session: &mut dyn Session) -> Result<()> {
        let manager = self.manager.as_ref();
        let manager = manager.ok_or_else(|| Error::invalid("cannot save without a checkpoint manager"))?;
        if !manager.cp_accessible(Some(epoch))? {
            return Err(Error::new(
                ErrorKind::Unavailable,
                "the metadata handler says that checkpoints cannot be saved now",
            ));
        }
        session.run(&manager.save(epoch)?, epoch)?;
        manager.write_checkpoint_metadata(epoch)?;
        // The epoch is safe: a report that fails must not make it look lost.
        if let Err(error) = manager.report_checkpoint_stats(Action::Save) {
            tracing::warn!(epoch, %error, "cannot report checkpoint statistics");
        }
        Ok(())
    }

    fn failed_since_last_save(&self) -> u32 {
        let last = self.report.saved.last();
        let failed = self.report.unsaved.iter().filter(|(epoch, _)| last.is_none_or(|last| epoch > last));
        u32::try_from(failed.count()).unwrap_or(u32::MAX)
    }

    /// Loads blobs of an epoch for evaluation, without training. See [`MultiNodeCheckpointManager::load_blobs_locally`].
    pub fn load_blobs_from_checkpoints(
        &self,
        blobs: &Selection,
        epoch: u64,
        session: &mut dyn Session,
    ) -> Result<bool> {
        let manager = self.manager.as_ref();
        let manager = manager.ok_or_else(|| Error::invalid("cannot load without a checkpoint manager"))?;
        let loaded = manager.load_blobs_locally(&self.job.nodes_to_checkpoint(), blobs, epoch, session)?;
        if loaded {
            manager.report_checkpoint_stats(Action::PartialLoad)?;
        }
        Ok(loaded)
    }
}

impl fmt::Debug for JobRunner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobRunner")
            .field("manager", &self.manager)
            .field("resume", &self.resume)
            .field("save_policy", &self.save_policy)
            .finish_non_exhaustive()
    }
}

fn next(epoch: u64) -> Result<u64> {
    epoch.checked_add(1).ok_or_else(|| Error::invalid("there is no epoch after the last number"))
}
