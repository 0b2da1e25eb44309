// Writes an OpenAPI 2 document (JSON, standard input) as protobuf, as a kube-apiserver does: base64, in JSON.
//
// python -m tests.record gnostic
package main

import (
	"encoding/base64"
	"encoding/json"
	"io"
	"os"

	openapi_v2 "github.com/google/gnostic-models/openapiv2"
	"google.golang.org/protobuf/proto"
)

func main() {
	raw, _ := io.ReadAll(os.Stdin)
	document, err := openapi_v2.ParseDocument(raw)
	if err != nil {
		panic(err)
	}
	written, err := proto.Marshal(document)
	if err != nil {
		panic(err)
	}
	json.NewEncoder(os.Stdout).Encode(map[string]any{
		"document": json.RawMessage(raw),
		"protobuf": base64.StdEncoding.EncodeToString(written),
	})
}
