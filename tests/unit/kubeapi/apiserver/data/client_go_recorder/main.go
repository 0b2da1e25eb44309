// Records what client-go's recorder of Events sends today: for an Event, and for the same one when it happens again.
//
// python -m tests.record client-go
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
)

type Request struct {
	Method  string          `json:"method"`
	Path    string          `json:"path"`
	Content string          `json:"contentType"`
	Body    json.RawMessage `json:"body"`
}

func main() {
	host, _ := os.Hostname()
	sent := make(chan Request, 16)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		raw, _ := io.ReadAll(r.Body)
		body := strings.ReplaceAll(string(raw), "controller-"+host, "controller-host")
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"kind":"Event","apiVersion":"events.k8s.io/v1","metadata":{"name":"n"}}`)
		sent <- Request{r.Method, r.URL.RequestURI(), r.Header.Get("Content-Type"), json.RawMessage(body)}
	}))
	client := kubernetes.NewForConfigOrDie(&rest.Config{Host: server.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"}})
	broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: client.EventsV1()})
	if err := broadcaster.StartRecordingToSinkWithContext(context.Background()); err != nil {
		panic(err)
	}
	recorder := broadcaster.NewRecorder(scheme.Scheme, "example.org/controller")
	about := &core.ConfigMap{ObjectMeta: meta.ObjectMeta{Name: "n", Namespace: "default", UID: "u-1"}}
	var found []Request
	for range 2 {
		recorder.Eventf(about, nil, "Normal", "Made", "Make", "made %s", "it")
		found = append(found, <-sent)
	}
	out, _ := json.MarshalIndent(found, "", " ")
	os.Stdout.Write(append(out, '\n'))
}
