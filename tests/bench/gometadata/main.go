// A metadata server as one would write it in Go: net/http, and a map from the sender's address to its answers.
//
//	metadata ADDRESS FILE
//
// FILE is JSON: how many machines there are, and the bodies by path, in which {number}, {address} and {mac} stand for
// the machine's. Everything is made before it listens, for nothing but the request is to be measured.
package main

import (
	"encoding/json"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
)

type site struct {
	Machines int
	Bodies   map[string]string
}

// address is bed.machine_ip.
func address(number int) string {
	return fmt.Sprintf("10.%d.%d.%d", 67+number/50000, number/200%250, 2+number%200)
}

// mac is ours.mac.
func mac(number int) string {
	return fmt.Sprintf("52:54:00:%02x:%02x:%02x", number>>16&255, number>>8&255, number&255)
}

func main() {
	log.SetFlags(0)
	content, err := os.ReadFile(os.Args[2])
	if err != nil {
		log.Fatal(err)
	}
	var known site
	if err := json.Unmarshal(content, &known); err != nil {
		log.Fatal(err)
	}
	answers := make(map[string]map[string][]byte, known.Machines)
	for number := 0; number < known.Machines; number++ {
		own := address(number)
		fill := strings.NewReplacer("{number}", strconv.Itoa(number), "{address}", own, "{mac}", mac(number))
		answers[own] = make(map[string][]byte, len(known.Bodies))
		for path, body := range known.Bodies {
			answers[own][fill.Replace(path)] = []byte(fill.Replace(body))
		}
	}
	log.Fatal(http.ListenAndServe(os.Args[1], http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, _ := net.SplitHostPort(r.RemoteAddr)
		body, found := answers[host][r.URL.Path]
		if !found {
			http.Error(w, "not found", http.StatusNotFound)
			return
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		w.Write(body)
	})))
}
