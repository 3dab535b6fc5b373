package example.palisade.fence;

import example.palisade.PalisadeException;

/**
 * The sequencer is not believed here, and nothing changed. Its code is {@code bad_sequencer}, {@code wrong_authority} or
 * {@code wrong_lock}; the message says why.
 */
public final class BadSequencerException extends PalisadeException {
    private static final long serialVersionUID = 1;

    BadSequencerException(String code, String message) {
        super(Kind.REJECTED, code, message);
    }

    static BadSequencerException bad(String message) {
        return new BadSequencerException("bad_sequencer", message);
    }

    static BadSequencerException malformed(String why) {
        return bad("the sequencer is malformed: " + why);
    }
}
