//! `DATABASE_URL=postgres://postgres@127.0.0.1/postgres cargo run --release -p seat-booking`

use seat_booking::{Failure, Mode, run};

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let url = std::env::var("DATABASE_URL").map_err(|_| {
        "set DATABASE_URL to a PostgreSQL database for the test data, \
         for example postgres://postgres@127.0.0.1/postgres"
    })?;
    for (mode, title) in [
        (Mode::Unfenced, "A lock and nothing else"),
        (Mode::Fenced, "The same with a fence"),
    ] {
        println!("{title}");
        let outcome = run(&url, mode, |line| println!("  {line}")).await?;
        let seated = outcome.seated.as_deref().unwrap_or("nobody");
        println!(
            "  Seated: {seated}. Charged: {}.\n",
            outcome.charged.join(", ")
        );
    }
    Ok(())
}
