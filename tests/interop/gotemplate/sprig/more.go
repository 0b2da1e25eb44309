package main

import (
	"encoding/json"
	"errors"
	"maps"
	"os"
	"slices"
	"strings"
	"text/template"

	"github.com/Masterminds/sprig/v3"
	"sigs.k8s.io/yaml"
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
	functions["toYaml"] = func(value any) (string, error) {
		text, err := yaml.Marshal(value)
		return strings.TrimSuffix(string(text), "\n"), err
	}
	functions["fromYaml"] = func(text string) (value any, err error) {
		if text == "" {
			return nil, errors.New("fromYaml: empty YAML input")
		}
		return value, yaml.Unmarshal([]byte(text), &value)
	}
	return functions
}
