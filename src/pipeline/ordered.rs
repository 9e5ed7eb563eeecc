//! Runs jobs on all cores, whose results come out in the order in which the jobs went in, with a
//! bounded number of them under way: a channel of pending results.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

/// Where jobs go in.
pub struct Submitter<T>(SyncSender<Receiver<T>>);

/// Where results come out, in the order of submission.
pub struct Results<T>(Receiver<Receiver<T>>);

/// Nobody receives results any more: the receiver has stopped, and reports why.
#[derive(Debug)]
pub struct Closed;

/// Creates a channel with room for `depth` jobs that are under way, or done and not yet received.
pub fn ordered<T: Send + 'static>(depth: usize) -> (Submitter<T>, Results<T>) {
    let (sender, receiver) = sync_channel(depth);
    (Submitter(sender), Results(receiver))
}

impl<T: Send + 'static> Submitter<T> {
    /// Runs `job` on rayon's pool; waits while `depth` results are pending.
    pub fn submit(&self, job: impl FnOnce() -> T + Send + 'static) -> Result<(), Closed> {
        let (sender, receiver) = sync_channel(1);
        self.0.send(receiver).map_err(|_| Closed)?;
        rayon::spawn(move || {
            // A job that panics has printed so, and must not end the process. Nobody waits for a
            // result once the consumer has stopped.
            if let Ok(result) = std::panic::catch_unwind(std::panic::AssertUnwindSafe(job)) {
                let _ = sender.send(result);
            }
        });
        Ok(())
    }
}

impl<T> Iterator for Results<T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        // The inner channel is empty only if its job panicked: that ends the results.
        self.0.recv().ok()?.recv().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn results_keep_the_order_of_their_jobs() {
        let (submitter, results) = ordered(3);
        let producer = std::thread::spawn(move || {
            for job in 0..50u64 {
                submitter
                    .submit(move || {
                        std::thread::sleep(Duration::from_micros(500 - job * 10));
                        job
                    })
                    .unwrap();
            }
        });
        assert_eq!(results.collect::<Vec<_>>(), (0..50).collect::<Vec<_>>());
        producer.join().unwrap();
    }

    #[test]
    fn a_producer_learns_that_its_consumer_has_stopped() {
        let (submitter, results) = ordered(1);
        drop(results);
        assert!(submitter.submit(|| 1).is_err());
    }
}
