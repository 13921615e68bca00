//! A bar on a terminal; nothing where standard error is something else.

use ckpt_engine::observer::Observer;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// One bar for all that runs at a time.
pub(super) struct Bar(ProgressBar);

impl Bar {
    pub(super) fn new() -> Self {
        let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
        let template = "{bar:30} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {wide_msg}";
        // The template is ours and sound; without it the bar has its usual look.
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        Self(bar)
    }
}

impl Observer for Bar {
    fn started(&self, what: &str, bytes: u64) {
        self.0.set_message(what.to_owned());
        self.0.inc_length(bytes);
    }

    fn advanced(&self, bytes: u64) {
        self.0.inc(bytes);
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
