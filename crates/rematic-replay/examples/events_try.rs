//! Prints.
use rematic_replay::{Action, Ledger, Observer};
struct P<'a>(&'a rematic_trace::StepTrace);
impl Observer for P<'_> {
    fn observe(&mut self, action: Action, ledger: &Ledger) {
        match action {
            Action::Launch(ran) => println!("op {}", self.0.op_name(self.0.op(ran.op))),
            Action::Alloc(b) => println!("alloc {}", ledger.footprint(b).0),
            Action::Free(b) => println!("free {}", ledger.footprint(b).0),
            _ => {}
        }
    }
}
fn main() {
    let path = std::env::args().nth(1).unwrap();
    let trace = rematic_trace::StepTrace::read(path.as_ref()).unwrap();
    let start = rematic_replay::Ledger::new(&trace, rematic_replay::Allocator::Cuda);
    let schedule = rematic_replay::Schedule::plain(&trace, &start);
    schedule.replay(&mut P(&trace));
}
