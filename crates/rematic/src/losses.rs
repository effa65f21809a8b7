use rematic_report::{CHUNKED_LOSS, LossTaken, OtherLoss, PLAIN_LOSS};
use rematic_trace::{Bytes, Verdict};

use crate::planning::PlanAnswer;

impl PlanAnswer {
    /// Of the plans for a step with the plain loss and with the chunked one, each for the same variants, those of the faster step. The
    /// plain ones are taken if they are equal, or if there are no others, for a reason that is said; the chunked ones also where they
    /// alone fit. Where neither do, it is those with the lower peak.
    #[must_use]
    pub fn of_losses(plain: Vec<PlanAnswer>, chunked: Result<Vec<PlanAnswer>, String>) -> Vec<PlanAnswer> {
        let chunked = match chunked {
            Ok(chunked) => chunked,
            Err(why) => {
                let refused = || OtherLoss::Refused { loss: CHUNKED_LOSS, why: why.clone() };
                return plain.into_iter().map(|answer| answer.taken(PLAIN_LOSS, refused())).collect();
            }
        };
        let takes_chunked = match (fit(&plain), fit(&chunked)) {
            (true, true) => time(&chunked) < time(&plain),
            (false, false) => peak(&chunked) < peak(&plain),
            (_, chunked) => chunked,
        };
        let ((word, taken), (other_word, others)) = if takes_chunked {
            ((CHUNKED_LOSS, chunked), (PLAIN_LOSS, plain))
        } else {
            ((PLAIN_LOSS, plain), (CHUNKED_LOSS, chunked))
        };
        taken.into_iter().zip(others).map(|(taken, other)| taken.taken(word, other.other(other_word))).collect()
    }

    fn other(&self, loss: &'static str) -> OtherLoss {
        let (step_ms, peak_bytes) = (self.pace.step, self.replayed.peak);
        OtherLoss::Planned { loss, outcome: self.verdict, step_ms, peak_bytes }
    }

    fn taken(self, taken: &'static str, other: OtherLoss) -> PlanAnswer {
        let loss = Some(LossTaken { taken, step_ms: self.pace.step, other });
        PlanAnswer { loss, ..self }
    }
}

fn fit(answers: &[PlanAnswer]) -> bool {
    answers.iter().all(|answer| answer.verdict != Verdict::Infeasible)
}

fn time(answers: &[PlanAnswer]) -> f64 {
    answers.iter().map(|answer| answer.pace.step.0).sum()
}

fn peak(answers: &[PlanAnswer]) -> Option<Bytes> {
    answers.iter().map(|answer| answer.replayed.peak).max()
}
