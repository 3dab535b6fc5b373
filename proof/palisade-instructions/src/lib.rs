//! The command line of the two benchmarks: `PROGRAM STEP TIMES` takes a step so many times, and without arguments the program
//! names its steps.

/// A step of the hot path, taken so many times.
pub type Step = fn(u64);

/// Does what the command line says.
///
/// # Panics
/// No step has this name, or TIMES is no number: a measurement ends by panicking.
#[expect(clippy::expect_used, reason = "a measurement ends by panicking")]
pub fn run(steps: &[(&str, Step)]) {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments[..] {
        [step, times] if step != "--bench" => {
            let named = steps.iter().find(|(name, _)| name == step);
            let (_, take) = named.expect("no step has this name");
            take(times.parse().expect("TIMES is a number"));
        }
        _ => steps.iter().for_each(|(name, _)| println!("{name}")),
    }
}
