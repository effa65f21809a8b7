//! Calls as they are, and as module hooks see them.

use rematic_fake::models::{Model, Options};
use rematic_trace::{Event, StepTrace};

fn llama() -> StepTrace {
    let config = r#"{"model_type": "llama", "vocab_size": 64, "hidden_size": 16, "intermediate_size": 32,
        "num_hidden_layers": 2, "num_attention_heads": 2}"#;
    let options = Options { batch: Some(1), seq: Some(8), ..Options::default() };
    Model::from_config("llama", config).unwrap().with(&options).unwrap().trace().unwrap()
}

/// Where in the step the backward of each call of a module ends, in operators.
fn backward_ends(trace: &StepTrace, path: &str) -> Vec<usize> {
    let mut ran = 0;
    let mut ends = Vec::new();
    for &event in trace.events() {
        match event {
            Event::Op(op) => ran = op.index() + 1,
            Event::ExitBackward(call) if trace.path(trace.call(call).module) == path => ends.push(ran),
            _ => {}
        }
    }
    ends
}

#[test]
fn the_backward_of_a_call_by_keyword_ends_with_its_own_operators() {
    let path = "LlamaForCausalLM.model.layers.1.self_attn";
    let hooked = llama();
    let over = backward_ends(&hooked, "LlamaForCausalLM");
    assert_eq!(backward_ends(&hooked, path), over);
    let whole = hooked.with_whole_calls();
    whole.validate().unwrap();
    let inner = backward_ends(&whole, "LlamaForCausalLM.model.layers.1.self_attn.q_proj");
    assert_eq!(backward_ends(&whole, path), inner);
    assert!(inner < over);
    let earlier = backward_ends(&whole, "LlamaForCausalLM.model.layers.0.self_attn");
    assert!(inner < earlier && earlier < over);
}

#[test]
fn keyword_arguments_are_inputs() {
    let hooked = llama();
    let attention = hooked.calls().iter().position(|call| hooked.path(call.module).ends_with("self_attn")).unwrap();
    assert_eq!(
        (hooked.calls().items()[attention].inputs.len(), hooked.calls().items()[attention].keywords.len()),
        (0, 4)
    );
    let whole = hooked.with_whole_calls();
    assert_eq!(whole.calls().items()[attention].inputs.len(), 4);
}

#[test]
fn nothing_else_changes() {
    let (hooked, whole) = (llama(), llama().with_whole_calls());
    let rest = |trace: &StepTrace| -> Vec<Event> {
        trace.events().iter().copied().filter(|event| !matches!(event, Event::ExitBackward(_))).collect()
    };
    assert_eq!(rest(&hooked), rest(&whole));
    assert_eq!(hooked.events().len(), whole.events().len());
    assert_eq!(whole.clone().with_whole_calls().events(), whole.events());
}
