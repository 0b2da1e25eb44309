package main

import (
	"encoding/json"
	"maps"
	"os"
	"slices"
	"text/template"

	"github.com/Masterminds/sprig/v3"
)

var more = hermetic()

// hermetic is what Sprig calls so, but for its slice: Go's own stays. With the argument "names" the program prints the
// names of all functions of Sprig, and ends.
func hermetic() template.FuncMap {
	if slices.Contains(os.Args, "names") {
		if err := json.NewEncoder(os.Stdout).Encode(slices.Sorted(maps.Keys(sprig.TxtFuncMap()))); err != nil {
			panic(err)
		}
		os.Exit(0)
	}
	functions := sprig.HermeticTxtFuncMap()
	delete(functions, "slice")
	return functions
}
