//! The help texts and the outputs that people see, word for word. `TRYCMD=overwrite cargo test -p rematic --test cli`
//! writes them again.

#[test]
fn outputs_are_as_written_down() {
    trycmd::TestCases::new().env("COLUMNS", "100").case("tests/cmd/*.trycmd");
}
