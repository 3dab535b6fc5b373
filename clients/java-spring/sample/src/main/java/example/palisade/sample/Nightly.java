package example.palisade.sample;

import example.palisade.shedlock.PalisadeLock;
import example.palisade.spring.Fenced;
import net.javacrumbs.shedlock.spring.annotation.SchedulerLock;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.scheduling.annotation.Scheduled;
import org.springframework.stereotype.Component;
import org.springframework.transaction.annotation.Transactional;

/** A job that one node of all runs. */
@Component
public class Nightly {
    private final JdbcTemplate database;
    private final Report report;

    Nightly(JdbcTemplate database, Report report) {
        this.database = database;
        this.report = report;
    }

    /** The lease lasts 15 s and is renewed, for two hours at most. A late write is refused. */
    @Scheduled(fixedDelayString = "${shop.every:1d}")
    @SchedulerLock(name = "nightly", lockAtMostFor = "2h")
    @Transactional
    public void run() {
        try (var bound = Fenced.bind("orders", PalisadeLock.current())) {
            int total = database.queryForObject("SELECT total FROM orders", Integer.class);
            database.update("UPDATE orders SET total = ?", report.after(total));
        }
    }
}
