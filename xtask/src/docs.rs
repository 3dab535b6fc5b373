//! `cargo xtask docs`: the pages of docs/ as a book with a search. The gate does not build it.

use std::process::Command;

use crate::prerequisites::BOOK;
use crate::shell::{root, run, target};

/// Builds the book into `target/book`, with the mdBook that PyPI has as a wheel.
pub(crate) fn build() -> bool {
    let built = BOOK.ensure(&target()).and_then(|place| {
        let mut mdbook = Command::new(place.join("bin/mdbook"));
        let book = target().join("book");
        run(mdbook.arg("build").arg("--dest-dir").arg(&book).arg(root())).map(|()| book)
    });
    match &built {
        Ok(book) => println!("docs: open {}", book.join("index.html").display()),
        Err(complaint) => println!("docs: {complaint}"),
    }
    built.is_ok()
}
