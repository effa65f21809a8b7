use rematic_trace::StepTrace;

/// What capture writes down where it cannot know which expert a token goes to.
const BALANCED: &str = "routing assumed balanced";

/// A line for people for each thing that capture had to assume about values; a promise holds as far as they do.
pub(crate) fn assumed_text(trace: &StepTrace) -> String {
    let lines = trace.origin.assumptions.iter().map(|assumed| match assumed.as_str() {
        BALANCED => {
            "Assumes that experts get equal shares of the tokens; where one gets more, the real peak may be higher.\n"
                .to_owned()
        }
        other => format!("Assumes: {other}.\n"),
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_assumed_is_said_in_words() {
        let mut trace = StepTrace::new("model");
        trace.origin.note("device", "cpu");
        assert_eq!(assumed_text(&trace), "");
        trace.origin.note("assumed", BALANCED);
        trace.origin.note("assumed", "no mask is empty");
        let text = assumed_text(&trace);
        assert!(text.starts_with("Assumes that experts get equal shares"), "{text}");
        assert!(text.ends_with("\nAssumes: no mask is empty.\n"), "{text}");
    }
}
