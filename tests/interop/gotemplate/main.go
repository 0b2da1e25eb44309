// Renders the cases on stdin, one JSON object a line ({"text", "data"}), with Go's own text/template and the options and
// functions of the Tinkerbell renderer, and those of `more`; prints one JSON object a line ({"ok", "output" in Base64, "error"}).
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os"
	"strconv"
	"text/template"
)

type testCase struct {
	Text string `json:"text"`
	Data any    `json:"data"`
}

type result struct {
	OK     bool   `json:"ok"`
	Output []byte `json:"output"`
	Error  string `json:"error"`
}

// plain gives JSON numbers the types that Kubernetes gives them: int where they are whole, else float64.
func plain(value any) any {
	switch v := value.(type) {
	case json.Number:
		if i, err := strconv.ParseInt(v.String(), 10, 64); err == nil {
			return int(i)
		}
		f, _ := v.Float64()
		return f
	case []any:
		for i := range v {
			v[i] = plain(v[i])
		}
	case map[string]any:
		for k := range v {
			v[k] = plain(v[k])
		}
	}
	return value
}

func render(c testCase) result {
	parsed, err := template.New("t").Option("missingkey=error").Funcs(more).Funcs(tinkerbell).Parse(c.Text)
	if err != nil {
		return result{Error: err.Error()}
	}
	var output bytes.Buffer
	if err := parsed.Execute(&output, plain(c.Data)); err != nil {
		return result{Error: err.Error()}
	}
	return result{OK: true, Output: output.Bytes()}
}

func main() {
	input := bufio.NewReaderSize(os.Stdin, 1<<20)
	output := bufio.NewWriter(os.Stdout)
	defer output.Flush()
	encoder := json.NewEncoder(output)
	for {
		line, err := input.ReadBytes('\n')
		if len(bytes.TrimSpace(line)) > 0 {
			var c testCase
			decoder := json.NewDecoder(bytes.NewReader(line))
			decoder.UseNumber()
			if err := decoder.Decode(&c); err != nil {
				panic(err)
			}
			if err := encoder.Encode(render(c)); err != nil {
				panic(err)
			}
		}
		if err != nil {
			return
		}
	}
}
