module palisade.example/palisade

go 1.26
