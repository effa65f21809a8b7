use crate::{CallId, Event, Phase, StepTrace};

impl StepTrace {
    /// The same step with its calls as they are, not as PyTorch's module hooks see them.
    ///
    /// A hook does not get keyword arguments. So it does not count them as inputs, and where a module gets its tensors
    /// only by keyword it cannot tell when the gradients of its inputs are there: its backward seems to last until the
    /// whole backward is over. Here keyword arguments are inputs, and the backward of such a call ends after its last own
    /// operator.
    #[must_use]
    pub fn with_whole_calls(mut self) -> StepTrace {
        for call in &mut self.calls {
            call.inputs.append(&mut call.keywords);
        }
        let ends = self.open_ends();
        if ends.is_empty() {
            return self;
        }
        let mut moved = self.calls.filled(false);
        for &(_, call) in &ends {
            moved[call] = true;
        }
        let mut ends = ends.into_iter().peekable();
        let mut events = Vec::with_capacity(self.events.len());
        let mut ran = None;
        for event in std::mem::take(&mut self.events) {
            match event {
                // What the last operator leaves behind goes before the call ends.
                Event::Op(op) => {
                    while let Some((_, call)) = ends.next_if(|(last, _)| ran.is_some_and(|ran| *last <= ran)) {
                        events.push(Event::ExitBackward(call));
                    }
                    ran = Some(op.index());
                }
                Event::ExitBackward(call) if moved[call] => {
                    while let Some((_, call)) = ends.next_if(|(last, _)| ran.is_some_and(|ran| *last <= ran)) {
                        events.push(Event::ExitBackward(call));
                    }
                    continue;
                }
                _ => {}
            }
            events.push(event);
        }
        self.events = events;
        self
    }

    /// Calls whose backward is closed only after the last backward operator, with the last operator of their own;
    /// in the order of these operators, inner calls first.
    fn open_ends(&self) -> Vec<(usize, CallId)> {
        let backward = |event: &Event| matches!(event, Event::Op(op) if self.op(*op).phase == Phase::Backward);
        let Some(over) = self.events.iter().rposition(backward) else { return Vec::new() };
        let mut open = self.calls.filled(false);
        for event in &self.events[over..] {
            if let Event::ExitBackward(call) = event {
                open[*call] = true;
            }
        }
        let mut parents = self.calls.filled(None);
        let mut running: Vec<CallId> = Vec::new();
        for event in &self.events {
            match event {
                Event::Enter(call) => {
                    parents[*call] = running.last().copied();
                    running.push(*call);
                }
                Event::Exit(_) => {
                    running.pop();
                }
                _ => {}
            }
        }
        let mut last = self.calls.filled(None);
        let mut current = None;
        for (index, op) in self.ops.iter().enumerate().filter(|(_, op)| op.phase == Phase::Backward) {
            // A gradient that reaches its parameter belongs to the call that it comes from.
            current = op.call.or(current);
            let mut at = current;
            while let Some(call) = at {
                last[call] = Some(index);
                at = parents[call];
            }
        }
        let ids = self.calls.ids();
        let mut ends: Vec<_> = ids.filter(|&call| open[call]).filter_map(|call| Some((last[call]?, call))).collect();
        ends.sort_by_key(|&(op, call)| (op, std::cmp::Reverse(call)));
        ends
    }
}
