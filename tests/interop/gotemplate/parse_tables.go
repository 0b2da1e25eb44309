// Laid over Go's package text/template/parse (go test -overlay): gives away the tables of its tests, with what Go's
// lexer and parser make of each text. One JSON object a line, into the file that PARSE_TABLES names.
package parse

import (
	"encoding/json"
	"os"
	"testing"
)

type parseRow struct {
	Table  string      `json:"table"`
	Name   string      `json:"name"`
	Text   string      `json:"text"`
	Tokens [][2]string `json:"tokens"` // kinds and texts
	Error  string      `json:"error"`
}

func TestGiveParseTables(t *testing.T) {
	file, err := os.Create(os.Getenv("PARSE_TABLES"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	encoder := json.NewEncoder(file)
	// The tests of this package lower it.
	maxStackDepth = 64
	functions := map[string]any{}
	for _, name := range []string{
		"and", "call", "eq", "ge", "gt", "html", "index", "js", "le", "len", "lt", "ne", "not", "or", "print",
		"printf", "println", "slice", "urlquery", "contains",
	} {
		functions[name] = true
	}
	give := func(table, name, text string) {
		row := parseRow{Table: table, Name: name, Text: text, Tokens: [][2]string{}}
		l := lex("t", text, "", "")
		l.options = lexOptions{breakOK: true, continueOK: true}
		for {
			item := l.nextItem()
			kind := item.typ.String()
			switch item.typ { // The tests of Go have no names for these two.
			case itemText:
				kind = "text"
			case itemAssign:
				kind = "="
			}
			row.Tokens = append(row.Tokens, [2]string{kind, item.val})
			if item.typ == itemEOF || item.typ == itemError {
				break
			}
		}
		if _, err := New("t").Parse(text, "", "", map[string]*Tree{}, functions); err != nil {
			row.Error = err.Error()
		}
		if err := encoder.Encode(row); err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range lexTests {
		give("lex", test.name, test.input)
	}
	for _, test := range lexPosTests {
		give("lex positions", test.name, test.input)
	}
	for _, test := range parseTests {
		give("parse", test.name, test.input)
	}
	for _, test := range errorTests {
		give("errors", test.name, test.input)
	}
	for _, test := range isEmptyTests {
		give("is empty", test.name, test.input)
	}
	for _, test := range numberTests {
		give("number", test.text, "{{"+test.text+"}}")
	}
}
