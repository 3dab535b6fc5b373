package example.palisade.sample;

/** What the nightly job computes. */
@FunctionalInterface
public interface Report {
    /** The new total. */
    int after(int total);
}
