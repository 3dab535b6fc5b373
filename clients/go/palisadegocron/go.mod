module palisade.example/palisade/palisadegocron

go 1.26

require (
	github.com/go-co-op/gocron/v2 v2.21.2
	github.com/google/uuid v1.6.0
	palisade.example/palisade v0.1.0
)

require (
	github.com/jonboulle/clockwork v0.5.0 // indirect
	github.com/robfig/cron/v3 v3.0.1 // indirect
)

// For work in the repository: who depends on this module does not see it.
replace palisade.example/palisade => ..
