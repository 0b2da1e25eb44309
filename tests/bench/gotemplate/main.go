// Parses and executes the template on stdin, a JSON object ({"text", "data", "seconds"}), again and again with Go's own
// text/template; prints one JSON object: microseconds for each and the output.
package main

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"text/template"
	"time"
)

type job struct {
	Text    string         `json:"text"`
	Data    map[string]any `json:"data"`
	Seconds float64        `json:"seconds"`
}

type result struct {
	Parse  float64 `json:"parse"`
	Render float64 `json:"render"`
	Output string  `json:"output"`
}

func formatPartition(device string, partition int) string {
	return device + "p" + string(rune('0'+partition)) // of the one kind that the template has
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

// repeat gives the microseconds that one call of work takes.
func repeat(seconds float64, work func()) float64 {
	calls := 0
	start := time.Now()
	for time.Since(start).Seconds() < seconds {
		for i := 0; i < 50; i++ {
			work()
		}
		calls += 50
	}
	return time.Since(start).Seconds() * 1e6 / float64(calls)
}

func main() {
	var j job
	check(json.NewDecoder(os.Stdin).Decode(&j))
	functions := template.FuncMap{"formatPartition": formatPartition, "contains": strings.Contains}
	parse := func() *template.Template {
		parsed, err := template.New("t").Option("missingkey=error").Funcs(functions).Parse(j.Text)
		check(err)
		return parsed
	}
	parsed := parse()
	var output bytes.Buffer
	render := func() {
		output.Reset()
		check(parsed.Execute(&output, j.Data))
	}
	render()
	found := result{Output: output.String()}
	found.Parse = repeat(j.Seconds, func() { parse() })
	found.Render = repeat(j.Seconds, render)
	check(json.NewEncoder(os.Stdout).Encode(found))
}
