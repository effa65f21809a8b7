use rematic_cost::{CostRule, Work};
use rematic_plan::Problem;
use rematic_replay::{Checkpoint, Clock};
use rematic_report::Pace;
use rematic_trace::{Bytes, Event, Millis, OpId, Phase, Place, StepTrace};

use crate::study::Study;
use crate::target::CostSource;

/// Axes along which ranks work on the same tokens: tensor, sequence, context, pipeline and expert parallelism, by the names that
/// people give them. All others have tokens of their own.
const SAME_TOKENS: [&str; 10] = ["tp", "sp", "cp", "pp", "ep", "tensor", "sequence", "context", "pipeline", "expert"];

impl Study {
    /// How fast the step goes as it is.
    #[must_use]
    pub fn pace(&self) -> &Pace {
        self.pace.get_or_init(|| {
            if self.is_one_stream() {
                let phases = [Phase::Forward, Phase::Backward, Phase::Optimizer];
                let spans = phases.map(|phase| self.costs.total(phase).time);
                return self.paced(self.costs.step().time, Millis(0.0), spans);
            }
            let clock = Clock::after(&self.trace, self.time_of());
            self.paced(clock.end(), clock.exposed(), clock.phases())
        })
    }

    /// How fast it goes with these regions checkpointed.
    pub(crate) fn pace_under(&self, problem: &Problem, checkpoints: &[Checkpoint]) -> Pace {
        if checkpoints.is_empty() {
            return *self.pace();
        }
        let per_byte = self.costs.host_rate().time(Bytes(1));
        let mut clock = Clock::new(&self.trace, self.time_of()).with_copies(per_byte);
        problem.schedule(checkpoints).replay(&mut clock);
        self.paced(clock.end(), clock.exposed(), clock.phases())
    }

    /// Whether operators run one after the other, so that the step is their sum.
    fn is_one_stream(&self) -> bool {
        self.trace.streams().len() == 1 && self.trace.collectives().is_empty()
    }

    fn time_of(&self) -> impl Fn(OpId) -> Millis + '_ {
        |op| self.costs.time(op)
    }

    fn paced(&self, step: Millis, exposed: Millis, phases: [Millis; 3]) -> Pace {
        let Work { flops, peak } = Work::new(&self.trace, &self.costs, &self.target.device);
        let device = &self.target.device;
        // The published runs train in bf16.
        let is_physical = self.target.cost == CostSource::Rule(CostRule::Physical);
        let least = peak.filter(|_| step.0 > 0.0 && !self.target.cost.is_torch()).map(|peak| peak.time(flops));
        let origin = &self.trace.origin;
        let tokens = origin.batch.zip(origin.seq).and_then(|(batch, seq)| batch.checked_mul(seq));
        let tokens = tokens.and_then(|tokens| tokens.checked_mul(micro_batches(&self.trace)));
        let samples = origin.batch.filter(|_| tokens.is_none());
        let samples = samples.and_then(|samples| samples.checked_mul(micro_batches(&self.trace)));
        let place = &self.trace.place;
        Pace {
            step,
            exposed,
            phases,
            communicates: !self.trace.collectives().is_empty(),
            tokens: tokens.and_then(|tokens| tokens.checked_mul(groups(place))),
            samples: samples.and_then(|samples| samples.checked_mul(groups(place))),
            devices: place.ranks().unwrap_or(1),
            flops,
            mfu: least.map(|least| least.0 / step.0).filter(|mfu| *mfu > 0.0),
            reached: device.pace_share.filter(|_| is_physical && peak.is_some() && peak == device.peaks.bf16),
        }
    }
}

/// How many batches of the origin's size the step has.
fn micro_batches(trace: &StepTrace) -> u64 {
    let begun = trace.events().iter().filter(|event| matches!(event, Event::MicroBatch(_)));
    (begun.count() as u64).max(1)
}

/// How many groups of ranks have tokens of their own.
fn groups(place: &Place) -> u64 {
    let own = place.axes.iter().filter(|axis| !SAME_TOKENS.contains(&axis.name.as_str()));
    own.fold(1, |groups: u64, axis| groups.saturating_mul(u64::from(axis.size)))
}
