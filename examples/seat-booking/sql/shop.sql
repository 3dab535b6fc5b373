DROP TABLE IF EXISTS seats, payments;
CREATE TABLE seats (seat text PRIMARY KEY, passenger text);
INSERT INTO seats VALUES ('12A', NULL);
-- The payment provider's records. It does not know about seats, locks or tokens.
CREATE TABLE payments (id bigserial PRIMARY KEY, passenger text NOT NULL, cents bigint NOT NULL,
                       refunded boolean NOT NULL DEFAULT false);
