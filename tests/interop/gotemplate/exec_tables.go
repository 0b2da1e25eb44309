// Laid over Go's package text/template (go test -overlay): gives away the tables of its tests, and what Go itself does
// with each row once the data is JSON-like (structs are maps, pointers what they point to, functions absent) and
// missing keys are errors. One JSON object a line, into the file that TABLES names.
package template

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"reflect"
	"strconv"
	"strings"
	"testing"
)

type tableRow struct {
	Table  string `json:"table"`
	Name   string `json:"name"`
	Text   string `json:"text"`
	Data   any    `json:"data"`
	WantOK bool   `json:"want_ok"` // what the table says
	Want   string `json:"want"`
	OK     bool   `json:"ok"` // what Go does with JSON-like data
	Output []byte `json:"output"`
	Error  string `json:"error"`
}

// absent is what no JSON-like data can hold.
type absent struct{}

// plain is the JSON-like image of a value.
func plain(v reflect.Value, depth int) any {
	if !v.IsValid() {
		return nil
	}
	if depth > 8 {
		return absent{}
	}
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if v.IsNil() {
			return nil
		}
		if v.Elem().Kind() == reflect.Struct && v.CanInterface() {
			switch shown := v.Interface().(type) {
			case fmt.Stringer:
				return shown.String()
			case error:
				return shown.Error()
			}
		}
		return plain(v.Elem(), depth+1)
	case reflect.Bool:
		return v.Bool()
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return int(v.Int())
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr:
		return int(v.Uint())
	case reflect.Float32, reflect.Float64:
		return v.Float()
	case reflect.String:
		return v.String()
	case reflect.Slice, reflect.Array:
		list := make([]any, 0, v.Len())
		for i := range v.Len() {
			list = append(list, plain(v.Index(i), depth+1))
		}
		return list
	case reflect.Map:
		object := map[string]any{}
		for _, key := range v.MapKeys() {
			object[fmt.Sprint(key.Interface())] = plain(v.MapIndex(key), depth+1)
		}
		return object
	case reflect.Struct:
		object := map[string]any{}
		for i := range v.NumField() {
			if field := v.Type().Field(i); field.IsExported() {
				if value := plain(v.Field(i), depth+1); value != (any)(absent{}) {
					object[field.Name] = value
				}
			}
		}
		return object
	}
	return absent{}
}

// marked writes floats so that they stay floats: 3 becomes 3.0.
func marked(value any) any {
	switch v := value.(type) {
	case float64:
		if math.IsInf(v, 0) || math.IsNaN(v) {
			return nil
		}
		text := strconv.FormatFloat(v, 'g', -1, 64)
		if !strings.ContainsAny(text, ".e") {
			text += ".0"
		}
		return json.RawMessage(text)
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = marked(v[i])
		}
		return out
	case map[string]any:
		out := map[string]any{}
		for key := range v {
			out[key] = marked(v[key])
		}
		return out
	}
	return value
}

func TestGiveTables(t *testing.T) {
	file, err := os.Create(os.Getenv("TABLES"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	encoder := json.NewEncoder(file)
	funcs := FuncMap{
		"add": add, "dddArg": dddArg, "echo": echo, "makemap": makemap, "mapOfThree": mapOfThree, "oneArg": oneArg,
		"returnInt": returnInt, "twoArgs": twoArgs, "typeOf": typeOf, "valueString": valueString, "zeroArgs": zeroArgs,
	}
	give := func(row tableRow, data any) {
		row.Data = data
		if row.Data == (any)(absent{}) {
			row.Data = nil
		}
		tmpl, err := New("t").Option("missingkey=error").Funcs(funcs).Parse(row.Text)
		var output bytes.Buffer
		if err == nil {
			err = tmpl.Execute(&output, row.Data)
		}
		if row.OK = err == nil; row.OK {
			row.Output = output.Bytes()
		} else {
			row.Error = err.Error()
		}
		row.Data = marked(row.Data)
		if err := encoder.Encode(row); err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range execTests {
		give(tableRow{Table: "exec", Name: test.name, Text: test.input, WantOK: test.ok, Want: test.output},
			plain(reflect.ValueOf(test.data), 0))
	}
	for _, test := range multiExecTests {
		text := strings.NewReplacer("\n", "", "\t", "").Replace(multiText1+multiText2) + test.input
		give(tableRow{Table: "multi", Name: test.name, Text: text, WantOK: test.ok, Want: test.output},
			plain(reflect.ValueOf(test.data), 0))
	}
	for _, test := range multiParseTests {
		give(tableRow{Table: "multi parse", Name: test.name, Text: test.input, WantOK: test.ok}, nil)
	}
	numbers := map[string]any{
		"Uthree": 3, "Ufour": 4, "NegOne": -1, "Three": 3, "Ptr": 0, "NilPtr": nil, "NonNilMap": map[string]any{},
		"Map": nil, "V1": map[string]any{}, "V2": map[string]any{}, "Iface1": "", "NilIface": nil,
	}
	for _, test := range cmpTests {
		give(tableRow{Table: "cmp", Name: test.expr, Text: "{{if " + test.expr + "}}true{{else}}false{{end}}",
			WantOK: test.ok, Want: test.truth}, numbers)
	}
}
