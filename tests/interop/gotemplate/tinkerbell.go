package main

import (
	"strconv"
	"strings"
	"text/template"
)

var tinkerbell = template.FuncMap{
	"contains":        strings.Contains,
	"hasPrefix":       strings.HasPrefix,
	"hasSuffix":       strings.HasSuffix,
	"formatPartition": formatPartition,
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
