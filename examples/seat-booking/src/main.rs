//! `DATABASE_URL=postgres://postgres@127.0.0.1/postgres cargo run --release -p seat-booking`

use seat_booking::{Failure, Mode, play};

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
        let ending = play(&url, mode, |line| println!("  {line}")).await?;
        let seated = ending.seated.as_deref().unwrap_or("nobody");
        println!(
            "  On the seat: {seated}. Have paid: {}.\n",
            ending.charged.join(", ")
        );
    }
    Ok(())
}
