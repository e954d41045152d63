//! Rows of `ready` without a job, which claims have met and deleted.

use queuert::__task::Lock;
use uuid::Uuid;

/// How many ids are named.
const NAMED: usize = 5;

/// What the next upkeep of this process reports.
#[derive(Debug, Default)]
pub(crate) struct RowsWithoutJob(Lock<(usize, Vec<Uuid>)>);

impl RowsWithoutJob {
    #[cold]
    pub(crate) fn remember(&self, ids: &[Uuid]) {
        let mut lost = self.0.lock();
        let (count, some) = &mut *lost;
        *count += ids.len();
        let room = NAMED - some.len();
        some.extend(ids.iter().take(room));
    }

    /// What has been remembered since the last time.
    pub(crate) fn finding(&self) -> Option<String> {
        let (count, some) = std::mem::take(&mut *self.0.lock());
        let ids: Vec<String> = some.iter().map(Uuid::to_string).collect();
        (count > 0).then(|| {
            format!(
                "{count} rows of the table `ready` had no job, so they could never run; claims came upon them and took them \
                 away; if the jobs are restored, restore these rows too: {}",
                ids.join(", ")
            )
        })
    }
}
