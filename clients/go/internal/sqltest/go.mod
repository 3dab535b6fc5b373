// Tests of the SQL fences with real drivers: a module of its own, so that the client depends on nothing.
module palisade.example/palisade/internal/sqltest

go 1.26

require (
	github.com/go-sql-driver/mysql v1.10.1
	github.com/lib/pq v1.12.3
	palisade.example/palisade v0.0.0
)

require filippo.io/edwards25519 v1.2.0 // indirect

replace palisade.example/palisade => ../..
