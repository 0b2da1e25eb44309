// Renders the cases on stdin, one JSON object a line ({"text", "data"}), with Go's own text/template and the options and
// functions of the Tinkerbell renderer; prints one JSON object a line ({"ok", "output" in Base64, "error"}).
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os"
	"strconv"
	"strings"
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

func formatPartition(device string, partition int) string {
	number := strconv.Itoa(partition)
	for _, prefix := range []string{"/dev/sd", "/dev/vd", "/dev/xvd", "/dev/hd"} {
		if strings.HasPrefix(device, prefix) {
			return device + number
		}
	}
	switch {
	case strings.HasPrefix(device, "/dev/disk/"):
		return device + "-part" + number
	case strings.HasPrefix(device, "/dev/nvme"), device != "" && strings.ContainsAny(device[len(device)-1:], "0123456789"):
		return device + "p" + number
	}
	return device + number
}

func render(c testCase) result {
	functions := template.FuncMap{
		"contains":        strings.Contains,
		"hasPrefix":       strings.HasPrefix,
		"hasSuffix":       strings.HasSuffix,
		"formatPartition": formatPartition,
	}
	parsed, err := template.New("t").Option("missingkey=error").Funcs(functions).Parse(c.Text)
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
