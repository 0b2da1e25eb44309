// Command oracle answers CEL cases with Kubernetes' own CEL environment.
//
// It reads one JSON case per line on stdin and prints one JSON answer per line:
//
//	{"e": expression, "s": OpenAPI schema of self or absent for dyn, "d": value of self, "o": value of oldSelf or absent}
//	{"t": type, "r": result, "c": compile error, "x": evaluation error, "k": cost, "n": least estimate, "m": greatest estimate}
//
// With the argument "functions" it prints the declared functions instead, one overload a line.
package main

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/checker"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	celvalues "k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel/model"
	"k8s.io/apimachinery/pkg/api/resource"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/version"
	apiservercel "k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/apiserver/pkg/cel/library"
)

type testCase struct {
	E string          `json:"e"`
	S json.RawMessage `json:"s,omitempty"`
	D json.RawMessage `json:"d,omitempty"`
	O json.RawMessage `json:"o,omitempty"`
}

type answer struct {
	T string  `json:"t,omitempty"`
	R string  `json:"r,omitempty"`
	C string  `json:"c,omitempty"`
	X string  `json:"x,omitempty"`
	K *uint64 `json:"k,omitempty"`
	N *uint64 `json:"n,omitempty"`
	M *uint64 `json:"m,omitempty"`
}

// sizes answers the estimator's questions about declared sizes from the tree of declared types.
type sizes struct{ root *apiservercel.DeclType }

func (s sizes) EstimateSize(node checker.AstNode) *checker.SizeEstimate {
	path := node.Path()
	if len(path) == 0 || s.root == nil {
		return nil
	}
	at := s.root
	for _, step := range path[1:] {
		var next *apiservercel.DeclType
		if step == "@items" || step == "@values" {
			next = at.ElemType
		} else if step == "@keys" {
			next = at.KeyType
		} else if f, ok := at.Fields[step]; ok {
			next = f.Type
		}
		if next == nil {
			return nil
		}
		at = next
	}
	return &checker.SizeEstimate{Min: 0, Max: uint64(at.MaxElements)}
}

func (s sizes) EstimateCallCost(function, overloadID string, target *checker.AstNode, args []checker.AstNode) *checker.CallEstimate {
	return nil
}

type world struct {
	env        *cel.Env
	decl       *apiservercel.DeclType
	structural *structuralschema.Structural
}

var worlds = map[string]*world{}

func worldFor(raw json.RawMessage) (*world, error) {
	if w, ok := worlds[string(raw)]; ok {
		return w, nil
	}
	base := environment.MustBaseEnvSet(version.MajorMinor(1, 36))
	w := &world{}
	var extra environment.VersionedOptions
	extra.IntroducedVersion = version.MajorMinor(1, 0)
	if len(raw) == 0 || string(raw) == "null" {
		extra.EnvOptions = []cel.EnvOption{cel.Variable("self", cel.DynType), cel.Variable("oldSelf", cel.DynType)}
	} else {
		var v1 apiextensionsv1.JSONSchemaProps
		if err := json.Unmarshal(raw, &v1); err != nil {
			return nil, err
		}
		var internal apiextensions.JSONSchemaProps
		if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(&v1, &internal, nil); err != nil {
			return nil, err
		}
		s, err := structuralschema.NewStructural(&internal)
		if err != nil {
			return nil, err
		}
		w.structural = s
		decl := model.SchemaDeclType(s, s.XEmbeddedResource)
		if decl == nil {
			return nil, fmt.Errorf("schema without declaration")
		}
		w.decl = decl.MaybeAssignTypeName("selfType")
		extra.EnvOptions = []cel.EnvOption{cel.Variable("self", w.decl.CelType()), cel.Variable("oldSelf", w.decl.CelType())}
		extra.DeclTypes = []*apiservercel.DeclType{w.decl}
	}
	set, err := base.Extend(extra)
	if err != nil {
		return nil, err
	}
	w.env = set.StoredExpressionsEnv()
	worlds[string(raw)] = w
	return w, nil
}

func (w *world) value(raw json.RawMessage) (any, error) {
	var v any
	if err := utiljson.Unmarshal(raw, &v); err != nil {
		return nil, err
	}
	if w.structural == nil {
		return v, nil
	}
	return celvalues.UnstructuredToVal(v, w.structural), nil
}

// text writes a value in one canonical form.
func text(v ref.Val) string {
	switch t := v.(type) {
	case types.Bool:
		return strconv.FormatBool(bool(t))
	case types.Int:
		return strconv.FormatInt(int64(t), 10)
	case types.Uint:
		return strconv.FormatUint(uint64(t), 10) + "u"
	case types.Double:
		return "double(" + strconv.FormatFloat(float64(t), 'g', -1, 64) + ")"
	case types.String:
		b, _ := json.Marshal(string(t))
		return string(b)
	case types.Bytes:
		return "bytes(" + base64.StdEncoding.EncodeToString(t) + ")"
	case types.Null:
		return "null"
	case types.Timestamp:
		return "timestamp(" + t.Time.UTC().Format(time.RFC3339Nano) + ")"
	case types.Duration:
		return "duration(" + strconv.FormatInt(int64(t.Duration), 10) + ")"
	case *types.Type:
		return "type(" + t.TypeName() + ")"
	case ref.Type:
		return "type(" + t.TypeName() + ")"
	case *types.Optional:
		if t.HasValue() {
			return "optional(" + text(t.GetValue()) + ")"
		}
		return "optional.none"
	case apiservercel.IP:
		return "ip(" + t.Addr.String() + ")"
	case apiservercel.CIDR:
		return "cidr(" + t.Prefix.String() + ")"
	case apiservercel.URL:
		return "url(" + t.URL.String() + ")"
	case apiservercel.Quantity:
		return "quantity(" + canonical(t.Quantity) + ")"
	case *apiservercel.Quantity:
		return "quantity(" + canonical(t.Quantity) + ")"
	case apiservercel.Semver:
		return "semver(" + t.Version.String() + ")"
	case apiservercel.Format:
		return "format(" + t.Name + ")"
	case *apiservercel.Format:
		return "format(" + t.Name + ")"
	case traits.Lister:
		var out []string
		for it := t.Iterator(); it.HasNext() == types.True; {
			out = append(out, text(it.Next()))
		}
		return "[" + strings.Join(out, ",") + "]"
	case traits.Mapper:
		var out []string
		for it := t.Iterator(); it.HasNext() == types.True; {
			k := it.Next()
			out = append(out, text(k)+":"+text(t.Get(k)))
		}
		sort.Strings(out)
		return "{" + strings.Join(out, ",") + "}"
	}
	return fmt.Sprintf("%T(%v)", v, v)
}

func (c testCase) answer() (a answer) {
	defer func() {
		if r := recover(); r != nil {
			a.X = fmt.Sprintf("PANIC %v", r)
		}
	}()
	w, err := worldFor(c.S)
	if err != nil {
		return answer{C: "SCHEMA " + err.Error()}
	}
	ast, issues := w.env.Compile(c.E)
	if issues != nil && issues.Err() != nil {
		return answer{C: issues.String()}
	}
	a.T = checker.FormatCELType(ast.OutputType())
	estimator := &library.CostEstimator{SizeEstimator: sizes{w.decl}}
	est, err := w.env.EstimateCost(ast, estimator)
	if err != nil {
		return answer{C: "ESTIMATE " + err.Error()}
	}
	a.N, a.M = &est.Min, &est.Max
	prog, err := w.env.Program(ast, cel.CostLimit(10000000), cel.CostTracking(estimator), cel.InterruptCheckFrequency(100))
	if err != nil {
		a.C = "program instantiation failed: " + err.Error()
		return a
	}
	vars := map[string]any{}
	if len(c.D) > 0 {
		if vars["self"], err = w.value(c.D); err != nil {
			return answer{C: "DATA " + err.Error()}
		}
	}
	if len(c.O) > 0 {
		if vars["oldSelf"], err = w.value(c.O); err != nil {
			return answer{C: "DATA " + err.Error()}
		}
	}
	out, details, err := prog.Eval(vars)
	if details != nil && details.ActualCost() != nil {
		a.K = details.ActualCost()
	}
	if err != nil {
		a.X = err.Error()
		return a
	}
	if types.IsError(out) {
		a.X = fmt.Sprint(out)
		return a
	}
	a.R = text(out)
	return a
}

func functions() {
	w, _ := worldFor(nil)
	var names []string
	for name := range w.env.Functions() {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		for _, o := range w.env.Functions()[name].OverloadDecls() {
			var args []string
			for _, t := range o.ArgTypes() {
				args = append(args, checker.FormatCELType(t))
			}
			fmt.Printf("%s\t%s\t%v\t%s\t%s\n", name, o.ID(), o.IsMemberFunction(), strings.Join(args, "; "), checker.FormatCELType(o.ResultType()))
		}
	}
}

func main() {
	if len(os.Args) > 1 && os.Args[1] == "functions" {
		functions()
		return
	}
	var mu sync.Mutex
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(make([]byte, 1<<20), 1<<26)
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	enc := json.NewEncoder(out)
	enc.SetEscapeHTML(false)
	for in.Scan() {
		var c testCase
		if err := json.Unmarshal(in.Bytes(), &c); err != nil {
			enc.Encode(answer{C: "CASE " + err.Error()})
			continue
		}
		mu.Lock()
		enc.Encode(c.answer())
		mu.Unlock()
	}
}

// canonical writes a quantity without the text it was read from.
func canonical(q *resource.Quantity) string {
	number, suffix := q.CanonicalizeBytes(make([]byte, 0, 64))
	return string(number) + string(suffix)
}
