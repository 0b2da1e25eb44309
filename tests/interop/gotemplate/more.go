package main

import "text/template"

var more template.FuncMap
