// Records what the API server shows of an object in printer columns: one cell for each column, or that it can't read it.
//
// python -m tests.record columns
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresource/tableconvertor"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

type Case struct {
	Type     string `json:"type"`
	JSONPath string `json:"jsonPath"`
	Readable bool   `json:"readable"`
	Cell     any    `json:"cell"`
}

func main() {
	var document struct {
		Object map[string]any `json:"-"`
		Raw    json.RawMessage `json:"object"`
		Cases  []Case          `json:"cases"`
	}
	if err := json.NewDecoder(os.Stdin).Decode(&document); err != nil {
		panic(err)
	}
	object := &unstructured.Unstructured{}
	if err := object.UnmarshalJSON(document.Raw); err != nil {
		panic(err)
	}
	for index := range document.Cases {
		show(object, &document.Cases[index])
	}
	out, err := json.Marshal(map[string]any{"object": document.Raw, "cases": document.Cases})
	if err != nil {
		panic(err)
	}
	fmt.Println(string(out))
}

func show(object *unstructured.Unstructured, one *Case) {
	columns := []apiextensions.CustomResourceColumnDefinition{{Name: "X", Type: one.Type, JSONPath: one.JSONPath}}
	converter, err := tableconvertor.New(columns)
	one.Readable, one.Cell = err == nil, nil
	if err != nil {
		return
	}
	table, err := converter.ConvertToTable(context.Background(), object.DeepCopy(), nil)
	if err != nil {
		panic(err)
	}
	one.Cell = table.Rows[0].Cells[1]
}
