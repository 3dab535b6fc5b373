// Tests of the SQL fences with real drivers: a module of its own, so that the client depends on nothing.
module palisade.example/palisade/internal/sqltest

go 1.19

require (
	github.com/go-sql-driver/mysql v1.5.0
	github.com/lib/pq v1.10.7
	palisade.example/palisade v0.0.0
)

replace palisade.example/palisade => ../..

// From Debian's packages golang-github-lib-pq-dev and golang-github-go-sql-driver-mysql-dev.
replace (
	github.com/go-sql-driver/mysql => /usr/share/gocode/src/github.com/go-sql-driver/mysql
	github.com/lib/pq => /usr/share/gocode/src/github.com/lib/pq
)
