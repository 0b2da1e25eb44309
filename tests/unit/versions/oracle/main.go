// Renders v1alpha1 Templates as Tinkerbell's controller does, with Tinkerbell's own types of Hardware, Sprig and yaml.v3.
// Reads cases from stdin, one JSON object a line ({"text", "hardware", "map"}); prints one JSON object a line: the
// rendered text and the Workflow that yaml.v3 reads from it, or the stage that failed and its error.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"text/template"

	"github.com/Masterminds/sprig/v3"
	"github.com/tinkerbell/tinkerbell/api/v1alpha1/tinkerbell"
	"gopkg.in/yaml.v3"
	kyaml "sigs.k8s.io/yaml"
)

type testCase struct {
	Text     string              `json:"text"`
	Hardware tinkerbell.Hardware `json:"hardware"`
	Map      map[string]string   `json:"map"`
}

type action struct {
	Name        string            `yaml:"name" json:"name"`
	Image       string            `yaml:"image" json:"image"`
	Timeout     int64             `yaml:"timeout" json:"timeout"`
	Command     []string          `yaml:"command" json:"command"`
	Volumes     []string          `yaml:"volumes" json:"volumes"`
	Environment map[string]string `yaml:"environment" json:"environment"`
	Pid         string            `yaml:"pid" json:"pid"`
	Namespaces  struct {
		Network string `yaml:"network" json:"network"`
		PID     string `yaml:"pid" json:"pid"`
	} `yaml:"namespaces" json:"namespaces"`
}

type task struct {
	Name        string            `yaml:"name" json:"name"`
	Worker      string            `yaml:"worker" json:"worker"`
	Actions     []action          `yaml:"actions" json:"actions"`
	Volumes     []string          `yaml:"volumes" json:"volumes"`
	Environment map[string]string `yaml:"environment" json:"environment"`
}

type workflow struct {
	Version       string `yaml:"version" json:"version"`
	Name          string `yaml:"name" json:"name"`
	GlobalTimeout int    `yaml:"global_timeout" json:"global_timeout"`
	Tasks         []task `yaml:"tasks" json:"tasks"`
}

type result struct {
	Rendered string    `json:"rendered,omitempty"`
	Workflow *workflow `json:"workflow,omitempty"`
	Stage    string    `json:"stage,omitempty"`
	Error    string    `json:"error,omitempty"`
}

type legacy struct {
	Disks      []string
	Interfaces []tinkerbell.Interface
	UserData   string
	Metadata   tinkerbell.HardwareMetadata
	VendorData string
}

var own = template.FuncMap{
	"formatPartition": func(device string, partition int) string {
		switch {
		case strings.HasPrefix(device, "/dev/disk/"):
			return fmt.Sprintf("%s-part%d", device, partition)
		case device != "" && device[len(device)-1] >= '0' && device[len(device)-1] <= '9':
			return fmt.Sprintf("%sp%d", device, partition)
		}
		return fmt.Sprintf("%s%d", device, partition)
	},
	"netmaskToPrefixLength": func(netmask string) (string, error) {
		ip := net.ParseIP(netmask)
		if ip == nil {
			return "", fmt.Errorf("invalid netmask format: %s", netmask)
		}
		if ip.To4() == nil {
			return "", fmt.Errorf("netmask must be IPv4: %s", netmask)
		}
		ones, _ := net.IPMask(ip.To4()).Size()
		return strconv.Itoa(ones), nil
	},
	"toYaml": func(value any) (string, error) {
		text, err := kyaml.Marshal(value)
		return strings.TrimSuffix(string(text), "\n"), err
	},
	"fromYaml": func(text string) (any, error) {
		var value any
		if text == "" {
			return nil, fmt.Errorf("fromYaml: empty YAML input")
		}
		err := kyaml.Unmarshal([]byte(text), &value)
		return value, err
	},
}

func data(c testCase) map[string]any {
	found := map[string]any{}
	for key, value := range c.Map {
		found[key] = value
	}
	spec := c.Hardware.Spec
	old := legacy{Interfaces: spec.Interfaces}
	for _, disk := range spec.Disks {
		old.Disks = append(old.Disks, disk.Device)
	}
	if spec.UserData != nil {
		old.UserData = *spec.UserData
	}
	if spec.VendorData != nil {
		old.VendorData = *spec.VendorData
	}
	if spec.Metadata != nil {
		old.Metadata = *spec.Metadata
	}
	text, _ := json.Marshal(c.Hardware)
	var plain map[string]any
	_ = json.Unmarshal(text, &plain)
	found["hardware"], found["Hardware"], found["references"] = plain, old, map[string]any{}
	return found
}

func render(c testCase) result {
	functions := sprig.HermeticTxtFuncMap()
	for name, function := range own {
		functions[name] = function
	}
	parsed, err := template.New("workflow-template").Option("missingkey=error").Funcs(functions).Parse(c.Text)
	if err != nil {
		return result{Stage: "parse", Error: err.Error()}
	}
	var output bytes.Buffer
	if err := parsed.Execute(&output, data(c)); err != nil {
		return result{Stage: "execute", Error: err.Error()}
	}
	found := result{Rendered: output.String(), Workflow: &workflow{}}
	if err := yaml.Unmarshal(output.Bytes(), found.Workflow); err != nil {
		return result{Rendered: found.Rendered, Stage: "yaml", Error: err.Error()}
	}
	return found
}

func main() {
	input := bufio.NewReaderSize(os.Stdin, 1<<20)
	encoder := json.NewEncoder(os.Stdout)
	encoder.SetEscapeHTML(false)
	for {
		line, err := input.ReadBytes('\n')
		if len(bytes.TrimSpace(line)) > 0 {
			var c testCase
			if err := json.Unmarshal(line, &c); err != nil {
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
